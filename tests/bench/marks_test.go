package bench_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/binary"
)

const (
	whatMarks     = "marks of 1,000 Services: planned and applied"
	whatMarksSame = "the same again: writes to the kernel"
)

// marks runs the agent's own benchmark, in which iptables-restore takes turns with it.
func (s *bench) marks(b *testing.B) {
	root, err := binary.Root()
	check(b, err)
	cmd := exec.CommandContext(b.Context(), "go", "test", "./edge/internal/optional/marks", "-vet", "off", "-run", "^$", "-bench", "^BenchmarkApply$", "-count", strconv.Itoa(*rounds))
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	have := measured(b, string(out), "")
	s.rows = append(s.rows,
		row{
			what: whatMarks, unit: "ms CPU", ours: have["cpu-ms-ours"], floor: have["cpu-ms-floor"], floorName: "iptables-restore and ip6tables-restore with the same rules",
			goal: "at most 1.5 x", judge: ratio(1.5),
			note: fmt.Sprintf("1,067 rules for IPv4 and 67 for IPv6; what there is, is read first. Processor time, of edgecore's part and of the programs. By the clock: %.0f ms "+
				"and %.0f ms, at a load of %s.", median(have["ms-ours"]), median(have["ms-floor"]), load()),
		},
		row{what: whatMarksSame, unit: "writes", ours: have["writes-again"], goal: "0", judge: atMost(0, "writes")})
}

// load is the machine's load average of the last minute (proc(5)).
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}
