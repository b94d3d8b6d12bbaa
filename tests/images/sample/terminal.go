package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal prints the size of its terminal, at the start and at each change, and how it was ended:
// an interrupt (Ctrl-C) is an error.
func terminal(ctx context.Context, out io.Writer) error {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	for {
		size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return fmt.Errorf("asking for the terminal's size: %w", err)
		}
		fmt.Fprintf(out, "size %dx%d\n", size.Col, size.Row)
		select {
		case <-changed:
		case <-ctx.Done():
			fmt.Fprintln(out, "interrupted")
			os.Exit(130) // as a shell reports SIGINT
		}
	}
}
