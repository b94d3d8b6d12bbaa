package drain_test

import (
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/hook"
)

// hang gives the lab a reboot hook that notes that it runs, and hangs. It returns how
// often it was run.
func (l *lab) hang(timeout time.Duration) (runs func() int) {
	dir := l.t.TempDir()
	l.real = hook.New(hook.Config{Dir: dir, Boot: l.boot, Timeout: timeout, Commands: map[string]string{
		string(v1alpha1.OperationReboot): "echo $$ >>" + dir + "/ran; echo rebooting; sleep 600",
	}})
	alive := func() (lines []string) {
		raw, err := os.ReadFile(dir + "/ran")
		if err != nil {
			return nil
		}
		return strings.Fields(string(raw))
	}
	l.t.Cleanup(func() {
		for _, pid := range alive() {
			if raw, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(raw), ") Z ") {
				l.t.Errorf("a hook has outlived its operation: %s", raw)
			}
		}
	})
	return func() int { return len(alive()) }
}

func (l *lab) awaitRuns(runs func() int, n int) {
	l.t.Helper()
	l.eventually("the hook runs", func() bool { return runs() == n })
}

// A hook that hangs: waiting operations name it, a restart runs no second one, cancel ends it,
// deletion ends it.
func TestTraps_17_HookThatHangsCanBeCancelled(t *testing.T) {
	l := newLab(t)
	runs := l.hang(time.Hour)
	l.serve()
	first, second := l.name+"-first", l.name+"-second"
	l.want(first, v1alpha1.OperationReboot)
	l.awaitRuns(runs, 1)
	l.want(second, v1alpha1.OperationReboot)
	said := func(name, text string) {
		t.Helper()
		l.eventually(name+" says "+text, func() bool {
			o := l.inCloud(name)
			return o != nil && len(o.Status.Conditions) > 0 && strings.Contains(o.Status.Conditions[0].Message, text)
		})
	}
	said(second, "waits for the end of the hook of "+first)
	said(first, "its hook runs")
	l.stop() // as a kill does: the hook keeps running
	l.serve()
	said(second, "waits for the end of the hook of "+first)
	if n := runs(); n != 1 {
		t.Errorf("the hook was run %d times", n)
	}
	l.must(l.operations().Patch(t.Context(), first, types.MergePatchType, []byte(`{"spec":{"cancel":true}}`), metav1.PatchOptions{}))
	o := l.awaitReported(first, "Cancelled")
	if !strings.HasPrefix(o.Status.Output, "rebooting\n") || !strings.Contains(o.Status.Conditions[0].Message, "hook was ended") {
		t.Errorf("its status: %+v", o.Status)
	}
	l.awaitRuns(runs, 2) // the other one's turn
	l.must(nil, l.operations().Delete(t.Context(), second, metav1.DeleteOptions{}))
	l.await("the device ends it", func(s drain.State) bool {
		o := operation(s, second)
		return o != nil && o.Stage == drain.Cancelled
	})
	l.awaitCordon(false, false)
}

// A hook that is not cancelled is killed, and the node takes pods again.
func TestTraps_17_HookThatTimesOutUncordons(t *testing.T) {
	l := newLab(t)
	runs := l.hang(300 * time.Millisecond)
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	o := l.awaitStage("one", drain.Failed)
	if o.Reason != "HookFailed" || !strings.Contains(o.Message, "did not end in time") || !strings.HasPrefix(o.Output, "rebooting\n") || runs() != 1 {
		t.Errorf("%s: %s, output %q", o.Reason, o.Message, o.Output)
	}
	l.awaitCordon(false, false)
}
