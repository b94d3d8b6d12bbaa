// Package cli is the common part of both binaries' commands: exit codes, signals, logging, version
// and configuration verbs.
//
// It owns how a command ends: 0 fine, 1 it failed, 2 the call or its input was wrong and there was
// no change, 78 a daemon's configuration is wrong. It does not know the commands' work. Only Main
// exits the process.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/logging"
	"github.com/skerry-io/skerry/common/terminal"
	"github.com/skerry-io/skerry/common/version"
)

// The exit codes.
const (
	Failed   = 1
	BadInput = 2
	// BadConfig is of daemons alone: EX_CONFIG of sysexits.h. Their units do not start them again
	// after it, while Go's runtime ends with 2 after a panic.
	BadConfig = 78
)

// exitError is an error with the code that the process ends with.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// Bad marks err as the caller's mistake: exit code 2. The command must not have made a change.
func Bad(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{BadInput, err}
}

// Badf is Bad(fmt.Errorf(...)).
func Badf(format string, args ...any) error { return Bad(fmt.Errorf(format, args...)) }

// Misconfigured turns the caller's mistake, where that is a daemon's configuration, into exit code
// 78.
func Misconfigured(err error) error {
	if e, ok := errors.AsType[*exitError](err); ok && e.code == BadInput {
		return &exitError{BadConfig, err}
	}
	return err
}

// Main runs a command with the process' arguments, ends its context at the first SIGTERM or SIGINT,
// and exits. A second signal ends the process at once.
func Main(command *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // from here on a signal has its default effect again
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return Badf("%w\nSee '%s --help'.", err, c.CommandPath())
	})
	err := command.ExecuteContext(ctx)
	klog.Flush()
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", command.Name(), err)
	if e, ok := errors.AsType[*exitError](err); ok {
		os.Exit(e.code)
	}
	os.Exit(Failed)
}

// Args turns a wrong number of arguments into exit code 2, with an error that names the arguments.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if err == nil {
			return nil
		}
		_, takes, _ := strings.Cut(c.Use, " ")
		switch {
		case c.HasAvailableSubCommands(): // cobra's error names the nearest command
		case takes == "" && len(args) > 0:
			err = fmt.Errorf("unexpected argument %q: %s takes none", args[0], c.CommandPath())
		case len(args) == 0:
			err = fmt.Errorf("an argument is missing: %s %s", c.CommandPath(), takes)
		default:
			err = fmt.Errorf("%w: %s %s", err, c.CommandPath(), takes)
		}
		return Badf("%w\nSee '%s --help'.", err, c.CommandPath())
	}
}

// DurationVar adds a flag for a duration that is not negative; 0 is no default.
func DurationVar(f *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	f.Var((*durationFlag)(p), name, usage)
}

type durationFlag time.Duration

// Set implements pflag.Value.
func (d *durationFlag) Set(text string) error {
	got, err := time.ParseDuration(text)
	if err != nil || got < 0 {
		return errors.New("must be a duration with a unit, like 90s or 24h")
	}
	*d = durationFlag(got)
	return nil
}

// String implements pflag.Value.
func (d *durationFlag) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Type implements pflag.Value.
func (*durationFlag) Type() string { return "duration" }

// Logging sets klog up, on standard error and on further writers, and returns ctx with the logger.
// klog is global by its nature; a process calls this once, before anything logs.
func Logging(ctx context.Context, format string, verbosity int, also ...io.Writer) (context.Context, *logging.Log) {
	log, logger := logging.New(logging.Config{Format: format, Verbosity: verbosity, Output: io.MultiWriter(append([]io.Writer{os.Stderr}, also...)...)})
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	return logr.NewContext(ctx, logger), log
}

// ReadFile reads a configuration file; a missing one is the caller's mistake, with a remedy.
func ReadFile(path, mend string) ([]byte, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, Badf("%s does not exist; %s", path, mend)
	case err != nil:
		return nil, Bad(err)
	}
	return data, nil
}

// Output is the -o flag.
type Output string

// AddTo registers the flag.
func (o *Output) AddTo(c *cobra.Command) {
	*o = "text"
	c.Flags().VarP(o, "output", "o", "text or json")
}

func (o *Output) String() string { return string(*o) }

// Set takes the flag's value.
func (o *Output) Set(s string) error {
	if s != "text" && s != "json" {
		return errors.New("must be text or json")
	}
	*o = Output(s)
	return nil
}

// Type names the flag's type in --help.
func (o *Output) Type() string { return "format" }

// Print writes value as JSON, or calls text, whose output can't control a terminal.
func (o *Output) Print(w io.Writer, value any, text func(io.Writer) error) error {
	if *o != "json" {
		return text(terminal.Writer(w))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// Version is the version command. further are numbers of the build that it prints as JSON alone.
func Version(program string, further map[string]int) *cobra.Command {
	var output Output
	c := &cobra.Command{
		Use: "version", Short: "Print the versions of Skerry and of the Kubernetes in this build", Args: Args(cobra.NoArgs),
		Example: "  " + program + " version\n  " + program + " version -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			v := map[string]any{"skerry": version.Skerry(), "kubernetes": version.Kubernetes()}
			for name, n := range further {
				v[name] = n
			}
			return output.Print(c.OutOrStdout(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s %s (Kubernetes %s)\n", program, v["skerry"], v["kubernetes"])
				return err
			})
		},
	}
	output.AddTo(c)
	return c
}

// Config is the config command: default, minimal, validate.
func Config(program, defaults, minimal, standard string, validate func(file string, data []byte) error) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Print or check a configuration file"}
	text := func(use, short, content string) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: Args(cobra.NoArgs),
			Example: "  " + program + " config " + use,
			RunE: func(c *cobra.Command, _ []string) error {
				_, err := io.WriteString(c.OutOrStdout(), content)
				return err
			},
		}
	}
	c.AddCommand(
		text("default", "Print every field with its default and an explanation", defaults),
		text("minimal", "Print the smallest file that works", minimal),
		&cobra.Command{
			Use: "validate [FILE]", Short: "Check a file and report every mistake with its line", Args: Args(cobra.MaximumNArgs(1)),
			Long:    "Check a file (default " + standard + ", - for standard input) and report every mistake at once with its line and field.\nExit code 0: fine. 2: not.",
			Example: "  " + program + " config validate " + standard + "\n  " + program + " config default | sed 's/info/debug/' | " + program + " config validate -",
			RunE: func(c *cobra.Command, args []string) error {
				path := standard
				if len(args) > 0 {
					path = args[0]
				}
				var data []byte
				var err error
				if path == "-" {
					path = "stdin"
					data, err = io.ReadAll(io.LimitReader(c.InOrStdin(), 2<<20))
				} else {
					data, err = ReadFile(path, "`"+program+" config minimal` prints one to start from")
				}
				if err != nil {
					return err
				}
				if err := validate(path, data); err != nil {
					return Bad(err)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s is fine\n", path)
				return err
			},
		},
	)
	return c
}
