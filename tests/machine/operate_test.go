package machine_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOperate_16: the journal is that of Debian's journald; a unit's lines come through the link,
// and those of others don't.
func TestOperate_16_JournalOfAUnitThroughTheLink(t *testing.T) {
	s := newSystem(t)
	s.run("systemd-run --quiet --wait --unit=fan echo the fan stands still")
	journal := func(query string) (out string) {
		t.Helper()
		s.WaitFor("a journal", func(ctx context.Context) (err error) { // a busy computer may cost the guest its link
			out, err = s.Run(ctx, "kubectl", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/logs/?query="+query)
			return err
		})
		return out
	}
	if out := journal("fan"); !strings.Contains(out, "the fan stands still") || strings.Contains(out, " skerry-launch[") {
		t.Errorf("the unit's journal is %q", out)
	}
	out := journal("edgecore&tailLines=3")
	if all := ofJournal.FindAllStringSubmatch(out, -1); len(all) != 3 || slices.ContainsFunc(all, func(m []string) bool { return m[1] != "skerry-launch" }) {
		t.Errorf("%d lines of edgecore's journal, want 3: %s", len(all), out)
	}
}

// ofJournal is the begin of a line of the journal, with the program.
var ofJournal = regexp.MustCompile(`(?m)^\w+ \d+ [0-9:.]+ ` + node + ` (\S+)\[`)

// TestOperate_11: the kernel panics. None here keeps its last messages (pstore has no backend in
// user-mode Linux), nor has it a watchdog: the flight recorder lists a boot without a shutdown, and
// a crash among its possible causes. That is one more boot, for `make long-test`: TestEveryday_23
// has the record of a power cut.
func TestOperate_11_RealMachinePanics(t *testing.T) {
	s := newSystem(t)
	before := s.running()
	s.switchOff("echo c >/proc/sysrq-trigger")
	s.switchOn()
	s.again(before)
	s.recordsPowerLoss()
}

// recordsPowerLoss fails where the flight recorder has another end of the last boot.
func (s *system) recordsPowerLoss() {
	s.T.Helper()
	if out := s.run("edgecore recorder --kind Boot --last 1"); !strings.Contains(out, "PowerLoss") || !strings.Contains(out, "a power cut, a reset or a crash") {
		s.T.Errorf("the flight recorder has %s", out)
	}
}
