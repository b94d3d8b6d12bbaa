// Command kubectl-skerry is `kubectl skerry`: how the devices of a cluster are, and kubectl's own
// logs, exec, attach, port-forward, cp and proxy by way of cloudcore's API subresources.skerry.io,
// for pods on edge nodes of clusters whose kube-apiserver can't dial a kubelet there.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd/attach"
	"k8s.io/kubectl/pkg/cmd/cp"
	"k8s.io/kubectl/pkg/cmd/exec"
	"k8s.io/kubectl/pkg/cmd/logs"
	"k8s.io/kubectl/pkg/cmd/portforward"
	"k8s.io/kubectl/pkg/cmd/proxy"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/completion"

	_ "github.com/skerry-io/skerry/common/i18n"
	"github.com/skerry-io/skerry/common/version"
)

func main() {
	if err := cli.RunNoErrOutput(command(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})); err != nil {
		cmdutil.CheckErr(err) // prints as kubectl does, and exits
	}
}

func command(streams genericiooptions.IOStreams) *cobra.Command {
	c := &cobra.Command{
		Use: "kubectl-skerry", Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl skerry"}, Version: version.Skerry(),
		Short: "Status of the devices; logs, exec, attach and port-forward of pods on them, through cloudcore",
		Long: `Status of the cluster's devices (status, top, node, operations, recorder, ui), from kube-apiserver and the devices themselves.

Logs, exec, attach and port-forward of pods on edge nodes, through cloudcore: kubectl's own commands with kubectl's own flags.
Other tools take the same way through 'kubectl skerry proxy'. With --reject-paths '^$' it also passes exec and attach on to nodes that are no
edges, for every program of this machine, web pages included: end it when the tool has ended.`,
		Example: `  kubectl skerry status
  kubectl skerry ui
  kubectl skerry logs -f -n shop pod/till-7xk2p
  kubectl skerry exec -it -n shop till-7xk2p -- sh
  kubectl skerry proxy --port 8001 --reject-paths '^$' &   # then: KUBECONFIG with server http://127.0.0.1:8001`,
		SilenceUsage: true,
	}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithWrapConfigFn(func(config *rest.Config) *rest.Config {
		config.Wrap(redirect)
		return config
	})
	flags.AddFlags(c.PersistentFlags())
	f := cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(flags))
	c.AddCommand(
		logs.NewCmdLogs(f, streams), exec.NewCmdExec(f, streams), attach.NewCmdAttach(f, streams), portforward.NewCmdPortForward(f, streams),
		cp.NewCmdCp(f, streams), proxy.NewCmdProxy(f, streams),
		statusCommand(flags, streams), topCommand(flags, streams), nodeCommand(flags, streams), operationsCommand(flags, streams), bundleCommand(flags, streams), rehearseCommand(flags, streams), artefactCommand(streams),
		recorderCommand(flags, streams), uiCommand(flags, streams),
	)
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help'.", err, c.CommandPath())
	}) //nolint:staticcheck // as common/cli prints it
	namesHelp(c)
	for _, sub := range c.Commands() {
		if _, arg, _ := strings.Cut(sub.Use, " "); arg == "NODE" {
			sub.ValidArgsFunction = completion.ResourceNameCompletionFunc(f, "node")
		}
	}
	return c
}
