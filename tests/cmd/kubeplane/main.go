// Command kubeplane is a whole Kubernetes control plane in one process, for trials and tests.
package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/tests/kubeplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cmd := command()
	if err := cmd.ExecuteContext(ctx); err != nil {
		klog.Flush()
		fmt.Fprintln(os.Stderr, "kubeplane:", err)
		os.Exit(1)
	}
	klog.Flush()
}

func command() *cobra.Command {
	cfg := kubeplane.Default()
	verbosity := 0
	cmd := &cobra.Command{
		Use:   "kubeplane",
		Short: "A whole Kubernetes control plane in one process, for trials and tests",
		Long: `kubeplane runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler, all upstream and unchanged, in one process.
It prints one line for each step and serves until SIGTERM. Everything it keeps is in --dir; after a restart it is all there again.`,
		Example: `  # A control plane on loopback, on free ports
  kubeplane --dir /tmp/plane --bind 127.0.0.1 --port 0 &
  kubectl --kubeconfig /tmp/plane/admin.kubeconfig get namespaces

  # One that others reach, quick to notice a lost node, with every request counted
  kubeplane --dir /tmp/plane --advertise 192.0.2.10 --quick --audit /tmp/plane/audit.log`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var level klog.Level
			if err := level.Set(fmt.Sprint(verbosity)); err != nil {
				return fmt.Errorf("--v: %w", err)
			}
			return kubeplane.Run(cmd.Context(), cfg, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Dir, "dir", cfg.Dir, "directory for keys, etcd's data and kubeconfigs")
	f.Var(text[netip.Addr]{&cfg.Bind, netip.ParseAddr}, "bind", "address kube-apiserver listens on")
	f.Var(text[netip.Addr]{&cfg.Advertise, netip.ParseAddr}, "advertise", "address that clients dial")
	f.Uint16Var(&cfg.Port, "port", cfg.Port, "kube-apiserver's port; 0 picks a free one")
	f.Uint16Var(&cfg.EtcdPort, "etcd-port", cfg.EtcdPort, "etcd's client port on loopback; 0 picks a free one")
	f.StringSliceVar(&cfg.SANs, "sans", nil, "further names and addresses in kube-apiserver's certificate")
	f.Var(text[netip.Prefix]{&cfg.ServiceCIDR, netip.ParsePrefix}, "service-cidr", "range for Services")
	f.BoolVar(&cfg.Quick, "quick", false, "notice a lost node within 12 s and evict after 10 s more, for tests")
	f.StringVar(&cfg.Audit, "audit", "", "file for one line of JSON a request")
	f.StringVar(&cfg.EgressSelector, "egress-selector", "", "file with an EgressSelectorConfiguration for kube-apiserver")
	f.StringVar(&cfg.EgressListen, "egress-listen", "", "address of a balancer for the egress, ADDRESS:PORT")
	f.StringSliceVar(&cfg.EgressTo, "egress-to", nil, "where it leads: the first of these that answers, from a random start")
	f.BoolVar(&cfg.Fsync, "fsync", false, "make etcd's writes survive a power failure")
	f.IntVar(&cfg.Owner, "owner", 0, "process id: end with that process, remove --dir, and until then let tests reset everything")
	f.DurationVar(&cfg.Idle, "idle", cfg.Idle, "with --owner: end after so long without a borrower")
	f.StringArrayVar(&cfg.APIServerArgs, "apiserver-arg", nil, "a further flag for kube-apiserver, like --apiserver-arg=--event-ttl=5m (repeatable)")
	f.StringArrayVar(&cfg.ControllerArgs, "controller-arg", nil, "a further flag for kube-controller-manager (repeatable)")
	f.StringArrayVar(&cfg.SchedulerArgs, "scheduler-arg", nil, "a further flag for kube-scheduler (repeatable)")
	f.IntVarP(&verbosity, "v", "v", verbosity, "log verbosity")
	return cmd
}

// text is a flag of any type with a parser and a String method.
type text[T fmt.Stringer] struct {
	value *T
	parse func(string) (T, error)
}

var _ pflag.Value = text[netip.Addr]{}

func (t text[T]) Set(s string) (err error) { *t.value, err = t.parse(s); return err }
func (t text[T]) Type() string             { return "address" }
func (t text[T]) String() string {
	if t.value == nil {
		return ""
	}
	return (*t.value).String()
}
