// Command loadbalancer stands in for a provider's load balancer in a trial whose cloud is a
// real Deployment.
package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/tests/cluster/loadbalancer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "loadbalancer:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var kubeconfig, address string
	var nodes []string
	c := &cobra.Command{
		Use: "loadbalancer", Short: "Forward one address to the healthy nodes of every Service of type LoadBalancer", Args: cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("--kubeconfig: %w", err)
			}
			b := loadbalancer.Config{}
			if b.Client, err = kubernetes.NewForConfig(cfg); err != nil {
				return fmt.Errorf("making a client: %w", err)
			}
			if b.Address, err = netip.ParseAddr(address); err != nil {
				return fmt.Errorf("--address: %w", err)
			}
			for _, n := range nodes {
				a, err := netip.ParseAddr(n)
				if err != nil {
					return fmt.Errorf("--nodes: %w", err)
				}
				b.Nodes = append(b.Nodes, a)
			}
			return loadbalancer.New(b).Run(c.Context())
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "the cluster's administrator")
	c.Flags().StringVar(&address, "address", "", "the address that Services get")
	c.Flags().StringSliceVar(&nodes, "nodes", nil, "addresses of the cluster's nodes")
	return c
}
