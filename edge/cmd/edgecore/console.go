package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/optional/console"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
)

func consoleCommand(file *string) *cobra.Command {
	var q console.Request
	c := &cobra.Command{
		Use: "console NAMESPACE/NAME", Short: "Open the console of a KubeVirt virtual machine that runs here, on a loopback port", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Open the console of a KubeVirt virtual machine that runs on this device: a port on 127.0.0.1, from 5900 on, for one VNC client at a time. It is open until
this command is interrupted, the time is up, the machine ends or the link to the cloud does.

Exit code 0: it was interrupted, or has ended. 1: edgecore does not answer, or the device is offline. 2: there is no such virtual machine here, or no permission for it.`,
		Example: "  edgecore console factory/plc-gateway            # then: vncviewer 127.0.0.1:5900\n  edgecore console factory/plc-gateway --for 10m --serial",
		RunE: func(c *cobra.Command, args []string) error {
			var ok bool
			if q.Namespace, q.Name, ok = strings.Cut(args[0], "/"); !ok {
				return cli.Badf("%q is not NAMESPACE/NAME", args[0])
			}
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			return openConsole(c.Context(), cfg, q, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&q.Serial, "serial", false, "the first serial port, as a plain stream of bytes, instead of the screen")
	cli.DurationVar(c.Flags(), &q.For, "for", 0, "how long it is open (default and most: modules.console.limit)")
	return c
}

// openConsole asks the running edgecore for a console and waits for its end.
func openConsole(ctx context.Context, cfg *config.Config, q console.Request, out io.Writer) error {
	raw, err := json.Marshal(q)
	if err != nil {
		return fmt.Errorf("writing the request: %w", err)
	}
	answer, err := postLocal(ctx, cfg, app.ConsolesPath, raw)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	lines := json.NewDecoder(answer.Body)
	var open console.State
	if err := lines.Decode(&open); err != nil {
		return fmt.Errorf("reading edgecore's answer: %w", err)
	}
	if _, err := fmt.Fprintf(out, "the %s console of %s is at %v until %s\n", open.Kind, open.Machine, open.Address, open.Until.Local().Format(time.TimeOnly)); err != nil {
		return err
	}
	var end app.ConsoleEnd
	if err := lines.Decode(&end); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // interrupted: edgecore ends it
		}
		return fmt.Errorf("edgecore has ended, and the console with it: %w", err)
	}
	_, err = fmt.Fprintf(out, "the console has ended: %s\n", end.Ended)
	return err
}

// postLocal is for answers that last: it has no timeout.
func postLocal(ctx context.Context, cfg *config.Config, path string, body []byte) (*http.Response, error) {
	socket := cfg.Modules.EdgeAPI.Socket
	if socket == "" {
		return nil, errors.New("modules.edgeAPI.socket is empty, so edgecore can't be asked")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://edgecore"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("writing the request: %w", err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	answer, err := client.Do(request)
	if err != nil {
		return nil, notRunning(err)
	}
	if answer.StatusCode == http.StatusOK {
		return answer, nil
	}
	defer func() { _ = answer.Body.Close() }()
	return nil, refusalOf(answer)
}
