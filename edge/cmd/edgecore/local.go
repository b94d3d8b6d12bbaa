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
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
)

// askLocal asks the edgecore that runs on this machine, through its unix socket. in is sent as JSON
// unless it is nil, the answer is read into out unless that is nil. A refusal that is the caller's
// mistake ends with exit code 2.
func askLocal(ctx context.Context, cfg *config.Config, method, path string, in, out any) error {
	return askWithin(ctx, cfg, askTimeout, method, path, in, out)
}

// rehearsalTimeout is for a rehearsal, which asks the container runtime.
const rehearsalTimeout = 30 * time.Second

// askWithin is askLocal with a bound of its own.
func askWithin(ctx context.Context, cfg *config.Config, within time.Duration, method, path string, in, out any) error {
	socket := cfg.Modules.EdgeAPI.Socket
	if socket == "" {
		return errors.New("modules.edgeAPI.socket is empty, so the running edgecore can't be reached")
	}
	var body io.Reader = http.NoBody
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("writing the order: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	client := http.Client{
		Timeout: within,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://edgecore"+path, body)
	if err != nil {
		return fmt.Errorf("writing the order: %w", err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return notRunning(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode/100 == 2 {
		if out == nil {
			return nil
		}
		if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
			return fmt.Errorf("reading edgecore's answer: %w", err)
		}
		return nil
	}
	return refusalOf(answer)
}

// notRunning returns the error of a request without an answer. The URL that http.Client puts into
// its error exists only on the socket, so it is left out.
func notRunning(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		if inner.Timeout() {
			return errors.New("edgecore does not answer: it is busy or stopped (systemctl status edgecore)")
		}
		err = inner.Err
	}
	return fmt.Errorf("edgecore does not run here: start it by systemctl start edgecore (%w)", err)
}

// refusalOf returns the error in an answer. The caller's mistakes end with exit code 2.
func refusalOf(answer *http.Response) error {
	why, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	if err != nil || len(bytes.TrimSpace(why)) == 0 {
		return fmt.Errorf("edgecore answered %s", answer.Status)
	}
	refusal := errors.New(strings.TrimSpace(string(why)))
	switch answer.StatusCode {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict:
		return cli.Bad(refusal)
	}
	return refusal
}

// loadOrDefault reads the configuration; without a file it returns the defaults and true.
func loadOrDefault(file string) (*config.Config, bool, error) {
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return config.Default(), true, nil
	}
	cfg, err := load(file)
	return cfg, false, err
}

// load reads the configuration.
func load(file string) (*config.Config, error) {
	data, err := cli.ReadFile(file, "`edgecore join` makes one, `edgecore config minimal` prints one to start from")
	if err != nil {
		return nil, err
	}
	if data, err = app.Overlaid(file, data); err != nil {
		return nil, cli.Bad(err)
	}
	cfg, err := app.Configuration(file, data)
	return cfg, cli.Bad(err)
}
