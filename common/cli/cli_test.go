package cli_test

import (
	"io"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
)

// A wrong call names the arguments and flags that are right.
func TestWrongCalls(t *testing.T) {
	for _, c := range []struct {
		use   string
		check cobra.PositionalArgs
		args  []string
		want  string
	}{
		{"status", cobra.NoArgs, []string{"edge1"}, "unexpected argument \"edge1\": status takes none\nSee 'status --help'."},
		{"cancel NAME", cobra.ExactArgs(1), nil, "an argument is missing: cancel NAME\nSee 'cancel --help'."},
		{"cancel NAME", cobra.ExactArgs(1), []string{"a", "b"}, "accepts 1 arg(s), received 2: cancel NAME\nSee 'cancel --help'."},
		{"cancel NAME", cobra.ExactArgs(1), []string{"a"}, ""},
		{"list", cobra.NoArgs, []string{"--since=5"}, "invalid argument \"5\" for \"--since\" flag: must be a duration with a unit, like 90s or 24h"},
		{"list", cobra.NoArgs, []string{"--since=-5s"}, "invalid argument \"-5s\" for \"--since\" flag: must be a duration with a unit, like 90s or 24h"},
		{"list", cobra.NoArgs, []string{"--since=1h30m"}, ""},
	} {
		var since time.Duration
		command := &cobra.Command{Use: c.use, Args: cli.Args(c.check), SilenceErrors: true, SilenceUsage: true, Run: func(*cobra.Command, []string) {}}
		cli.DurationVar(command.Flags(), &since, "since", time.Hour, "only newer")
		command.SetArgs(append([]string{}, c.args...))
		command.SetOut(io.Discard)
		got := ""
		if err := command.Execute(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s %q: %s\nwant %s", c.use, c.args, got, c.want)
		}
		if want := map[bool]time.Duration{true: 90 * time.Minute, false: time.Hour}[c.want == "" && c.use == "list"]; since != want {
			t.Errorf("%s %q: %v, want %v", c.use, c.args, since, want)
		}
	}
}
