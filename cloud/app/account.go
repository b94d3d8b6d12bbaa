package app

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/common/version"
)

// restConfig is the way to kube-apiserver by a kubeconfig; "" means the account of the pod.
func restConfig(kubeconfig string) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if kubeconfig == "" {
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("kubeconfig is not set, and this is no pod: %w", err)
		}
	} else if cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.UserAgent = "cloudcore/" + version.Skerry()
	return cfg, nil
}

// instanceName tells the replicas apart, in logs and in Leases.
func instanceName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "cloudcore"
	}
	return host + "-" + rand.String(5)
}
