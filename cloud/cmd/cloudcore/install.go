package main

import (
	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/cloud/install"
	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/version"
)

func installCommand() *cobra.Command {
	o := install.Options{Image: version.Image("cloudcore"), Replicas: 2}
	var file string
	c := &cobra.Command{
		Use: "install --advertise HOST", Short: "Print the manifests of cloudcore, for kubectl apply", Args: cli.Args(cobra.NoArgs),
		Long: `Print the manifests of cloudcore, for kubectl apply: least rights, the kinds of skerry.io, two replicas. They need
Kubernetes 1.36 or later (MutatingAdmissionPolicy v1, constrained impersonation); 'cloudcore check' checks a cluster.

With --usage cloudcore also answers 'kubectl top' and autoscalers, where no metrics-server does.

With --kubelet-endpoint 'kubectl logs' and the like reach edge nodes by their names in the DNS, where kube-apiserver
can't be given an egress: docs/tunnel.md.

--config names a file with further fields of cloudcore.yaml ('cloudcore config default' lists them). Give it each time: the
output has these fields and no others that were set before. A change rolls cloudcore out.`,
		Example: `  cloudcore install --advertise cloud.example.com | kubectl apply -f -
  cloudcore install --advertise cloud.example.com --image registry.example.com/cloudcore:v0.1.0 | kubectl apply -f -
  cloudcore install --advertise cloud.example.com --usage | kubectl apply -f -     # with kubectl top
  cloudcore install --advertise cloud.example.com --config more.yaml | kubectl apply -f -     # more.yaml: {hub: {maxSessions: 20000}}
  cloudcore install --rights-only | kubectl apply -f -     # cloudcore runs elsewhere, with a kubeconfig of its service account`,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("config") {
				data, err := cli.ReadFile(file, "it has fields of cloudcore.yaml, such as {hub: {maxSessions: 20000}}")
				if err != nil {
					return err
				}
				o.File = install.ConfigFile{Name: file, Data: data}
			}
			if err := o.Validate(); err != nil {
				return cli.Bad(err)
			}
			out, err := install.Render(o)
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(out)
			return err
		},
	}
	c.Flags().StringSliceVar(&o.Advertise, "advertise", nil, "names and addresses under which edges reach cloudcore")
	c.Flags().StringVar(&o.Image, "image", o.Image, "container image of cloudcore (default: a release's own; other builds have no default)")
	c.Flags().StringVar(&file, "config", "", "file with fields of cloudcore.yaml in addition to those that this command sets")
	c.Flags().IntVar(&o.Replicas, "replicas", o.Replicas, "how many replicas")
	c.Flags().BoolVar(&o.RightsOnly, "rights-only", false, "only the kinds of skerry.io, the namespace, the account, its rights and the policies")
	c.Flags().BoolVar(&o.Usage, "usage", false, "serve metrics.k8s.io too: kubectl top and autoscalers")
	c.Flags().BoolVar(&o.Console, "console", false, "let devices open consoles of KubeVirt virtual machines that run on them")
	c.Flags().BoolVar(&o.Endpoint, "kubelet-endpoint", false, "serve the kubelets by the names of their nodes, for a kube-apiserver without an egress")
	return c
}
