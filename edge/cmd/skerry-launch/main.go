// Command skerry-launch executes the edgecore whose turn it is: the version that is tried, the
// confirmed one, or the package's. The unit of edgecore runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

const usage = `skerry-launch executes edgecore: the version that is tried (at most 3 starts), else the confirmed one, else the package's.

  skerry-launch [--dir DIR] [--version-file FILE] [--] PROGRAM [ARG...]

Example:
  skerry-launch --dir /var/lib/skerry/bin -- /usr/bin/edgecore --config /etc/skerry/edgecore.yaml

`

func main() {
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	dir := flag.String("dir", "/var/lib/skerry/bin", "directory of the slots: bin in edgecore's dataDir")
	version := flag.String("version-file", "/usr/share/skerry/version", "file with the version of the package")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	err = launch.Launch{
		Directory: launch.Directory{Path: *dir, Disk: launch.System{}}, Self: append([]string{self}, os.Args[1:]...),
		Program: flag.Arg(0), Args: flag.Args()[1:], Version: *version, Log: os.Stderr, Exec: syscall.Exec,
	}.Run(time.Now())
	fmt.Fprintln(os.Stderr, "skerry-launch:", err)
	os.Exit(1)
}
