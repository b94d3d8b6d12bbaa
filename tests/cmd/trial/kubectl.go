package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	basecli "k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	_ "github.com/skerry-io/skerry/common/i18n"
)

// kubectlCommand stands in the help; main calls runKubectl before it gets here.
func kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl ...", Short: "kubectl as the cluster's administrator", DisableFlagParsing: true,
		Example: `  trial kubectl get nodes -o wide
  trial kubectl -n sample get pods -w`,
		Run: func(_ *cobra.Command, args []string) { runKubectl(args) },
	}
}

// runKubectl is upstream's kubectl. Without a KUBECONFIG from 'trial edge' or a --kubeconfig it
// talks to this repository's trial, never to another cluster.
func runKubectl(args []string) {
	if os.Getenv(edgeMark) == "" {
		t, err := open()
		if err == nil {
			_, err = t.Env()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "trial kubectl:", err)
			os.Exit(2)
		}
		os.Setenv("KUBECONFIG", t.Kubeconfig())
	}
	if own, err := os.Executable(); err == nil { // where kubectl-skerry is too, which kubectl looks for in the PATH
		os.Setenv("PATH", filepath.Dir(own)+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	os.Args = append([]string{"kubectl"}, args...)
	// As upstream's main: the verbosity counts from the first line on, before flags are parsed.
	logs.GlogSetter(cmd.GetLogVerbosity(os.Args)) // a wrong value shows when the flags are parsed
	command := cmd.NewDefaultKubectlCommand()
	if err := basecli.RunNoErrOutput(command); err != nil {
		cmdutil.CheckErr(err) // prints as kubectl does, and exits
	}
}

// edgeMark in the environment makes a kubectl on an edge use its KUBECONFIG.
const edgeMark = "TRIAL_EDGE"

func wantsHelp(args []string) bool { return len(args) > 0 && (args[0] == "-h" || args[0] == "--help") }
