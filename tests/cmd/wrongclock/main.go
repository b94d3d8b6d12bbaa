// Command wrongclock runs a program that sees another time of day: wrongclock SECONDS
// PROGRAM [ARG...]; @FILE in place of the seconds reads them from a file again and again.
package main

import (
	"fmt"
	"os"

	"github.com/skerry-io/skerry/tests/cluster/wrongclock"
)

func main() {
	code, err := wrongclock.Main(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "wrongclock:", err)
	}
	os.Exit(code)
}
