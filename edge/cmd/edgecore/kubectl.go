package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/program"
)

func kubectlCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use: "kubectl ...", Short: "Run kubectl against this device's own API: reads, logs, exec, attach, port-forward, cp; works offline",
		Long: `Run kubectl, which has to be in the PATH, against the API of this device. It needs no cloud: get, describe and events show what the device holds;
logs, exec, attach, port-forward and cp lead to the pods of this device by way of its own kubelet. Writes need the link. For root alone.

The exit code is kubectl's. 1: there is no kubectl, or this user may not use the API. 2: the configuration is wrong.`,
		Example: `  edgecore kubectl get pods -A
  edgecore kubectl logs -f -n shop till-7xk2p
  edgecore kubectl exec -it -n shop till-7xk2p -- sh
  edgecore kubectl port-forward -n shop till-7xk2p 8080
  edgecore kubectl cp -n shop till-7xk2p:/var/till.log ./till.log`,
		DisableFlagParsing: true, // they are kubectl's
		RunE: func(c *cobra.Command, args []string) error {
			args, err := takeConfig(args, file)
			if err != nil {
				return err
			}
			if len(args) == 0 || args[0] == "-h" || args[0] == "--help" {
				return c.Help()
			}
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			kubeconfig := app.Kubeconfig(cfg)
			if err := readable(kubeconfig); err != nil {
				return err
			}
			path, err := program.Find("kubectl")
			if err != nil {
				return errors.New("there is no kubectl in the PATH of this device; put one there (docs/edge-api.md), or see `edgecore status` and `edgecore events`")
			}
			return program.Replace(path, args, append(os.Environ(), "KUBECONFIG="+kubeconfig))
		},
	}
}

// takeConfig takes edgecore's own flag from before kubectl's arguments.
func takeConfig(args []string, file *string) ([]string, error) {
	for len(args) > 0 {
		value, ok := strings.CutPrefix(args[0], "--config=")
		switch {
		case ok:
			*file, args = value, args[1:]
		case args[0] == "--config" && len(args) > 1:
			*file, args = args[1], args[2:]
		case args[0] == "--config":
			return nil, cli.Badf("flag needs an argument: --config")
		default:
			return args, nil
		}
	}
	return args, nil
}

// readable reports why this user can't use the kubeconfig of the device's API.
func readable(kubeconfig string) error {
	f, err := os.Open(kubeconfig)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root of this device may use its API: %s", kubeconfig)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is not there: start edgecore (systemctl start edgecore), with modules.edgeAPI.listen set; does dataDir match %s?", kubeconfig, filepath.Dir(kubeconfig))
	}
	return err
}
