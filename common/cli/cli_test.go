package cli_test

import (
	"fmt"
	"io"
	"strings"
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

// Text of others is printed without its commands for the terminal; JSON has them escaped.
func TestPrintControlsNoTerminal(t *testing.T) {
	const text = "Liveness probe failed: \x1b[2Jgone\u202e"
	for format, want := range map[string]string{"text": "Liveness probe failed: [2Jgone\n", "json": "\"Liveness probe failed: \\u001b[2Jgone\u202e\"\n"} {
		var out strings.Builder
		o := cli.Output(format)
		if err := o.Print(&out, text, func(w io.Writer) error { _, err := fmt.Fprintln(w, text); return err }); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", format, out.String(), err)
		}
	}
}
