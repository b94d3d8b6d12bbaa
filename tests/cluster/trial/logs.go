package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/skerry-io/skerry/common/cli"
)

// followInterval is how soon a new line shows.
const followInterval = 200 * time.Millisecond

// Logs writes the log of a host's program, the last one that it starts without a name, and
// continues until ctx ends if follow is set.
func (t *Trial) Logs(ctx context.Context, out io.Writer, host, name string, follow bool) error {
	if err := t.exists(); err != nil {
		return err
	}
	if _, ok := t.guestNode(host); ok {
		command := []string{"journalctl", "--no-pager", "--output=cat", "--unit=" + cmp.Or(name, "edgecore")}
		if follow {
			command = append(command, "--follow", "--lines=all")
		}
		if _, err := t.execGuest(ctx, host, Streams{Out: out}, command...); err != nil && ctx.Err() == nil {
			return err
		}
		return nil
	}
	if !slices.Contains(t.Hosts(), host) {
		return cli.Badf("there is no host %q: this trial has %s", host, strings.Join(t.Hosts(), ", "))
	}
	if name == "" {
		all := t.programs(host)
		if len(all) == 0 {
			return cli.Badf("no program of ours runs on %s", host)
		}
		name = all[len(all)-1].name
	}
	if _, err := t.program(host, name); err != nil {
		return err
	}
	f, err := os.Open(t.LogPath(host, name))
	if errors.Is(err, fs.ErrNotExist) {
		return cli.Badf("%s on %s has not been started yet", name, host)
	}
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer f.Close()
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for {
		if _, err := io.Copy(out, f); err != nil {
			return fmt.Errorf("reading the log: %w", err)
		}
		if !follow {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
