package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/check"
	"github.com/skerry-io/skerry/edge/internal/config"
)

func checkCommand(file *string) *cobra.Command {
	var output cli.Output
	c := &cobra.Command{
		Use: "check", Short: "Say what is missing on this machine, and how to mend it", Args: cli.Args(cobra.NoArgs),
		Long: "Say what edgecore would miss on this machine, and how to mend it. Changes nothing; needs neither the cloud nor a running edgecore.\n" +
			"Exit code 0: all fine (there may be warnings). 1: something has to be mended.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			findings := check.Run(c.Context(), machine(c, cfg))
			if err := output.Print(c.OutOrStdout(), findings, func(w io.Writer) error { return writeFindings(w, findings) }); err != nil {
				return err
			}
			failed := 0
			for _, f := range findings {
				if f.Level == check.Fail {
					failed++
				}
			}
			if failed > 0 {
				return fmt.Errorf("to be mended: %d of %d", failed, len(findings))
			}
			return nil
		},
	}
	output.AddTo(c)
	return c
}

func machine(c *cobra.Command, cfg *config.Config) check.Machine {
	kubelet := struct {
		Endpoint string `json:"containerRuntimeEndpoint"`
	}{"unix:///run/containerd/containerd.sock"}
	_ = json.Unmarshal(cfg.Modules.Edged.Kubelet, &kubelet) // checked when the file was read
	_, err := os.Stat(filepath.Join(app.IdentityDir(cfg), "node.pem"))
	m := check.Machine{
		Root: "/", DataDir: cfg.DataDir, RuntimeEndpoint: kubelet.Endpoint, CNIConfigDir: "/etc/cni/net.d", Joined: err == nil,
		Clock: time.Now(), Built: app.BuildTime(), VirtualIPs: cfg.Modules.VIP.Enable,
	}
	if _, err := runningStatus(c.Context(), cfg); err != nil { // while edgecore runs, the ports are its own
		for _, at := range []string{cfg.Modules.EdgeAPI.Listen, cfg.Health.Listen, ":10250"} {
			if at != "" {
				m.Ports = append(m.Ports, at)
			}
		}
	}
	return m
}

func writeFindings(w io.Writer, findings []check.Finding) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Level, f.Name, f.Message)
		if f.Mend != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", f.Mend)
		}
	}
	return t.Flush()
}
