package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/cloud/install/kubevip"
	"github.com/skerry-io/skerry/common/cli"
)

func kubeVIPCommand() *cobra.Command {
	var kubeconfig string
	c := &cobra.Command{
		Use: "kube-vip", Short: "Install or remove kube-vip in a trial cluster",
		Long: `kube-vip gives Services of type LoadBalancer addresses of a LAN, and answers for them by ARP. This is for trial clusters: its nodes must share the LAN, and something on
them must serve the addresses (kube-proxy, or modules.services of edgecore).`,
	}
	c.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of an administrator (default: as kubectl finds it)")
	client := func() (kubevip.Client, error) {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = kubeconfig
		cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
		if err != nil {
			return kubevip.Client{}, cli.Badf("no way to kube-apiserver: %w; name an administrator's kubeconfig with --kubeconfig", err)
		}
		cfg.UserAgent, cfg.Timeout = "cloudcore", 30*time.Second
		var out kubevip.Client
		if out.Kubernetes, err = kubernetes.NewForConfig(cfg); err != nil {
			return out, fmt.Errorf("making the client: %w", err)
		}
		if out.Dynamic, err = dynamic.NewForConfig(cfg); err != nil {
			return out, fmt.Errorf("making the client: %w", err)
		}
		return out, nil
	}
	c.AddCommand(kubeVIPApplyCommand(client), kubeVIPDeleteCommand(client))
	return c
}

func kubeVIPApplyCommand(client func() (kubevip.Client, error)) *cobra.Command {
	var options kubevip.Options
	c := &cobra.Command{
		Use: "apply", Short: "Install kube-vip, or change its interface and range", Args: cli.Args(cobra.NoArgs),
		Example: `  cloudcore kube-vip apply --interface eth0 --cidr 192.168.10.64/28 --image REGISTRY/kube-vip:v0.9.1 --provider-image REGISTRY/kube-vip-cloud-provider:v0.0.12
  cloudcore kube-vip apply --interface eth0 --cidr 192.168.10.64/28 --image REGISTRY/kube-vip:v0.9.1 --exclude 192.168.10.65,192.168.10.70-192.168.10.72`,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := options.Ranges(nil); err != nil { // before anything is asked
				return cli.Bad(err)
			}
			if options.Image == "" {
				return cli.Badf("--image is missing: name kube-vip's image, v0.9.1, in a registry that your nodes reach")
			}
			to, err := client()
			if err != nil {
				return err
			}
			ranges, err := kubevip.Apply(c.Context(), to, options)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "kube-vip gives Services addresses of %s on %s\n", ranges, options.Interface)
			return nil
		},
	}
	c.Flags().StringVar(&options.Interface, "interface", "", "the nodes' network interface on the LAN")
	c.Flags().StringVar(&options.CIDR, "cidr", "", "the network that addresses are taken from; no host may have one of them")
	c.Flags().StringSliceVar(&options.Exclude, "exclude", nil, "addresses, networks and ranges of it that are never given away")
	c.Flags().StringVar(&options.Image, "image", "", "kube-vip's image")
	c.Flags().StringVar(&options.ProviderImage, "provider-image", "", "the image of kube-vip's cloud provider; without it Services name their addresses themselves (kube-vip.io/loadbalancerIPs)")
	return c
}

func kubeVIPDeleteCommand(client func() (kubevip.Client, error)) *cobra.Command {
	return &cobra.Command{
		Use: "delete", Short: "Remove kube-vip, and its addresses from Services; may be repeated", Args: cli.Args(cobra.NoArgs),
		Example: "  cloudcore kube-vip delete",
		RunE: func(c *cobra.Command, _ []string) error {
			from, err := client()
			if err != nil {
				return err
			}
			n, err := kubevip.Delete(c.Context(), from)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%d objects of kube-vip are deleted\n", n)
			return nil
		},
	}
}
