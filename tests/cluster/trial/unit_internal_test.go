package trial

import (
	"os"
	"regexp"
	"testing"
	"time"
)

// The tests and benchmarks of a trial run edgecore with the timer slack of its package.
func TestTimerSlackIsTheUnits(t *testing.T) {
	unit, err := os.ReadFile("../../../build/systemd/edgecore.service")
	if err != nil {
		t.Fatal(err)
	}
	setting := regexp.MustCompile(`(?m)^TimerSlackNSec=(.*)$`).FindSubmatch(unit)
	if setting == nil {
		t.Fatal("edgecore.service has no TimerSlackNSec")
	}
	if got, err := time.ParseDuration(string(setting[1])); err != nil || got != EdgecoreTimerSlack {
		t.Errorf("TimerSlackNSec is %v (%v), and in a trial %v", got, err, EdgecoreTimerSlack)
	}
}
