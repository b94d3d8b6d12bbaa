// Command hollow links many edge nodes without kubelets to a cloudcore, to measure the load that it
// and kube-apiserver can take.
package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/tests/hollow"
)

func main() { cli.Main(command()) }

// options are the flags.
type options struct {
	config        hollow.Config
	transport     string
	kubeconfig    string
	caCert, caKey string
	every         time.Duration
	keep          bool
	verbosity     int
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use: "hollow", Short: "Many edge nodes without kubelets, in one process", Args: cli.Args(cobra.NoArgs),
		Long: `hollow links nodes to a cloudcore by the real protocol, each with a certificate of its own, a Node object, heartbeats, and a status every five minutes; no kubelet
and no pods. It prints how many are linked, and runs until it is interrupted; then it deletes its Node objects.

The certificates come from the cluster: each is asked for as a CertificateSigningRequest, and approved with the rights of the kubeconfig, which must be an
administrator's. A controller manager signs some 20 a second. With --ca-cert and --ca-key, the cluster's own CA as two files, hollow signs them itself.`,
		Example: `  eval "$(bin/trial env)"
  bin/hollow --kubeconfig "$KUBECONFIG" --server "$TRIAL_CLOUD" --server-name 198.51.100.10 --nodes 100
  bin/trial kubectl get nodes`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout()) },
	}
	f := c.Flags()
	f.IntVar(&o.config.Nodes, "nodes", 100, "number of nodes")
	f.StringVar(&o.config.Prefix, "prefix", "hollow-", "of the nodes' names; two processes at once need two")
	f.StringVar(&o.config.Server, "server", "", "host of cloudcore")
	f.StringVar(&o.config.ServerName, "server-name", "", "name or address that cloudcore advertises, where that is not --server")
	f.StringVar(&o.transport, "transport", string(link.WebSocket), "websocket or quic")
	f.IntVar(&o.config.Port, "port", 443, "of cloudcore for that transport")
	f.IntVar(&o.config.Rate, "rate", 200, "nodes that make their first dial in a second")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "an administrator's")
	f.StringVar(&o.caCert, "ca-cert", "", "certificate of the cluster's CA, a PEM file")
	f.StringVar(&o.caKey, "ca-key", "", "its key, a PEM file")
	f.DurationVar(&o.every, "every", 5*time.Second, "between two lines of output")
	f.BoolVar(&o.keep, "keep", false, "leave the Node objects at the end")
	f.IntVarP(&o.verbosity, "verbosity", "v", 0, "of the log, 0 to 10")
	return c
}

func (o *options) run(ctx context.Context, out io.Writer) error {
	ctx, _ = cli.Logging(ctx, "", o.verbosity)
	switch {
	case o.kubeconfig == "":
		return cli.Badf("--kubeconfig is missing")
	case (o.caCert == "") != (o.caKey == ""):
		return cli.Badf("--ca-cert and --ca-key come together")
	case o.every <= 0:
		return cli.Badf("--every: %v is not above 0", o.every)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return cli.Badf("--kubeconfig: %w", err)
	}
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return cli.Badf("--kubeconfig: %w", err)
	}
	if o.config.Roots, err = hollow.Roots(ctx, client); err != nil {
		return err
	}
	o.config.Transport, o.config.Identity = link.Transport(o.transport), hollow.FromCSR(client)
	if o.caKey != "" {
		o.config.Identity = hollow.FromCA(o.caCert, o.caKey)
	}
	fleet, err := hollow.New(o.config)
	if err != nil {
		return cli.Bad(err)
	}
	if err := fleet.Allow(ctx, client); err != nil {
		return err
	}
	g, serving := errgroup.WithContext(ctx)
	g.Go(func() error { return fleet.Run(serving) })
	g.Go(func() error { return report(serving, out, fleet, o.every) })
	err = g.Wait()
	if o.keep {
		return err
	}
	fmt.Fprintln(out, "deleting the Node objects")
	if removeErr := fleet.Remove(context.WithoutCancel(ctx), client); err == nil {
		err = removeErr
	}
	return err
}

func report(ctx context.Context, out io.Writer, fleet *hollow.Fleet, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n := fleet.Count()
		if _, err := fmt.Fprintf(out, "[%6.1fs] linked %d, in step %d, registered %d; sessions so far %d, objects down %d, refused %d\n", time.Since(began).Seconds(),
			n.Linked, n.Synced, n.Registered, n.Connects, n.Changes, n.Refused); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}
}
