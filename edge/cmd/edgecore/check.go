package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/setup/check"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

func checkCommand(file *string) *cobra.Command {
	var output cli.Output
	var token, tokenFile string
	c := &cobra.Command{
		Use: "check [HOST[:PORT] --token-file FILE]", Short: "Run preflight checks", Args: cli.Args(cobra.MaximumNArgs(1)),
		Long: `Run preflight checks: missing prerequisites of edgecore on this machine, and their remedies. Read-only; needs neither the
cloud nor a running edgecore.

With a HOST and a token, as edgecore join takes them, it also checks the cloud: whether it is the one that the token
pins, a proxy terminates TLS on the way, TCP and UDP reach it, and the clocks and the Kubernetes versions fit. The token
does not leave the device and is not used up.

Exit code 0: all fine (there may be notes and warnings). 1: something has to be fixed. 2: invalid command.`,
		Example: `  edgecore check
  edgecore check --token-file /root/join-token cloud.example.com`,
		RunE: func(c *cobra.Command, args []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			if len(args) == 0 && (token != "" || tokenFile != "") {
				return cli.Badf("a token needs a HOST\nSee '%s --help'.", c.CommandPath())
			}
			findings := check.Run(c.Context(), machine(c, cfg))
			if len(args) > 0 {
				parsed, err := readToken(c.InOrStdin(), token, tokenFile)
				if err != nil {
					return cli.Bad(err)
				}
				findings = append(findings, reach(c.Context(), join.Options{Server: args[0], Token: parsed, Clock: pki.NewClock(app.BuildTime(), nil)})...)
			}
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
	tokenFlags(c, &token, &tokenFile)
	output.AddTo(c)
	return c
}

// reach asks the cloud that a token is for, and tries the ways to it.
func reach(ctx context.Context, o join.Options) []check.Finding {
	cloud := check.Cloud{Server: o.Server, Now: o.Clock.Now, Kubelet: version.Kubernetes(), Proxy: http.ProxyFromEnvironment}
	ca, about, err := join.Ask(ctx, o)
	if err != nil {
		cloud.Err, cloud.Mend = err, join.Remedy(err)
		return check.Reach(ctx, cloud)
	}
	cloud.Roots = pki.Pool(ca)
	if about != nil { // else it is older than the question
		cloud.WebSocket, cloud.QUIC, cloud.Kubernetes = about.WebSocket, about.QUIC, about.Kubernetes
		cloud.Skew = time.Since(time.UnixMilli(about.UnixMillis)).Round(time.Second)
	}
	return check.Reach(ctx, cloud)
}

// preflightTimeout bounds the checks before a join. A cloud that does not answer in time is left to
// the join, which retries.
const preflightTimeout = 15 * time.Second

// preflight runs the checks before a join, and prints problems. It refuses if a join would make a
// node that can't work; missing programs may be installed later, and an unreachable cloud may
// become reachable soon.
func preflight(c *cobra.Command, cfg *config.Config, o join.Options) error {
	ctx, cancel := context.WithTimeout(c.Context(), min(o.Timeout, preflightTimeout))
	defer cancel()
	findings := append(check.Run(ctx, machine(c, cfg)), reach(ctx, o)...)
	var found []check.Finding
	var refused error
	for _, f := range findings {
		if f.Level == check.Fail && f.Name == "kubernetes" {
			refused = fmt.Errorf("%s: %s", f.Message, f.Mend)
		}
		if (f.Level == check.Fail || f.Level == check.Warn) && f.Name != "cloud" { // join itself reports an unreachable cloud
			found = append(found, f)
		}
	}
	if err := writeFindings(c.ErrOrStderr(), found); err != nil {
		return err
	}
	return cli.Bad(refused)
}

func machine(c *cobra.Command, cfg *config.Config) check.Machine {
	kubelet := struct {
		Endpoint     string `json:"containerRuntimeEndpoint"`
		FailCgroupV1 bool   `json:"failCgroupV1"`
		FailSwapOn   bool   `json:"failSwapOn"`
	}{"unix:///run/containerd/containerd.sock", true, true} // the kubelet's defaults
	_ = json.Unmarshal(cfg.Modules.Edged.Kubelet, &kubelet) // checked when the file was read
	m := check.Machine{
		Root: "/", DataDir: cfg.DataDir, RuntimeEndpoint: kubelet.Endpoint, CNIConfigDir: "/etc/cni/net.d", Joined: joined(cfg),
		Clock: time.Now(), Built: app.BuildTime(), VirtualIPs: cfg.Modules.VIP.Enable, PodNetwork: cfg.Modules.PodNetwork.Enable,
		PodsAPI: cfg.Modules.EdgeAPI.Enable && cfg.Modules.EdgeAPI.Pods, CgroupV1: !kubelet.FailCgroupV1, Swap: !kubelet.FailSwapOn,
		NodeIP: cfg.Modules.Edged.NodeIP,
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

// joined reports whether this device has an identity.
func joined(cfg *config.Config) bool {
	_, err := os.Stat(filepath.Join(app.IdentityDir(cfg), "node.pem"))
	return err == nil
}

func writeFindings(w io.Writer, findings []check.Finding) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Level, f.Name, oneLine(f.Message))
		if f.Mend != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", f.Mend)
		}
	}
	return t.Flush()
}
