package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// cluster is the connection to the cluster, which every wing uses.
type cluster struct {
	config   *config.Config
	instance string // of this replica
	client   *kube.Client
	access   *kube.Access
}

func newCluster(cfg *config.Config) (*cluster, error) {
	own, err := restConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	mode := kube.Constrained
	if cfg.Impersonation == "classic" {
		mode = kube.Classic
	}
	client, err := kube.NewClient(own, mode)
	if err != nil {
		return nil, err
	}
	return &cluster{cfg, instanceName(), client, kube.NewAccess(client.Kubernetes())}, nil
}

// wing is the part of a wing that the process runs and the sessions carry.
type wing struct {
	entries    []beehive.Entry // in the order in which they start
	collectors []prometheus.Collector
	carried    []cloudhub.Part // of devices' sessions
}

// add adds another part of the same wing, whose modules start after those that it has.
func (w *wing) add(part wing) {
	w.entries = append(w.entries, part.entries...)
	w.collectors = append(w.collectors, part.collectors...)
	w.carried = append(w.carried, part.carried...)
}
