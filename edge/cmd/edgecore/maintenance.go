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

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/config"
)

func maintenanceCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use: "maintenance on|off", Short: "Hand this device's virtual IPs over to other nodes, or take part again",
		Long: "Hand this device's virtual IPs over to other nodes of their pools before you work on it, or let it take part again.\n" +
			"It holds over reboots, and needs no cloud. An address that no other node can take has no holder meanwhile.",
		Example: "  edgecore maintenance on && edgecore status",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgs: []string{"on", "off"},
		RunE: func(c *cobra.Command, args []string) error {
			on := args[0] == "on"
			if !on && args[0] != "off" {
				return cli.Bad(fmt.Errorf("%q is neither on nor off", args[0]))
			}
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			return orderMaintenance(c.Context(), cfg, on)
		},
	}
}

// orderMaintenance tells the edgecore that runs on this machine.
func orderMaintenance(ctx context.Context, cfg *config.Config, on bool) error {
	socket := cfg.Modules.EdgeAPI.Socket
	if socket == "" {
		return errors.New("modules.edgeAPI.socket is empty, so edgecore can't be told")
	}
	body, err := json.Marshal(app.Maintenance{On: on})
	if err != nil {
		return fmt.Errorf("writing the order: %w", err)
	}
	client := http.Client{
		Timeout: askTimeout,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://edgecore"+app.MaintenancePath, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("writing the order: %w", err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("telling edgecore: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusNoContent {
		return nil
	}
	why, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil {
		return fmt.Errorf("edgecore answered %s", answer.Status)
	}
	return fmt.Errorf("edgecore answered %s: %s", answer.Status, strings.TrimSpace(string(why)))
}
