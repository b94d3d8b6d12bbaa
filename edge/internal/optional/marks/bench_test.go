package marks_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/mangle"
	"github.com/skerry-io/skerry/edge/internal/optional/marks"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// BenchmarkApply plans 1,000 Services and applies the plan, in turn with iptables-restore and
// ip6tables-restore that are given the same rules as text. Both are measured by the clock, and by
// the time that this process and its children had a processor: on a busy machine the clock shows
// more of the others.
func BenchmarkApply(b *testing.B) {
	host := wire.NewHost(b)
	var objects marks.Objects
	for i := range 1000 {
		s := service(fmt.Sprintf("s%d", i), corev1.ServiceTypeLoadBalancer, corev1.ServicePort{Port: 80, NodePort: int32(30000 + i)})
		s.Spec.LoadBalancerIP = netip.AddrFrom4([4]byte{198, 51, byte(i / 250), byte(i%250 + 1)}).String()
		objects.Services = append(objects.Services, s)
	}
	driver := mangle.New()
	apply := func(o marks.Objects) (changed int) {
		b.Helper()
		host.Must(b, func() (err error) {
			c := marks.Collect(o)
			changed, err = driver.Apply(context.Background(), marks.Plan(&c, marks.Settings{}))
			return err
		})
		return changed
	}
	run := func(input, program string, args ...string) string {
		b.Helper()
		var out bytes.Buffer
		host.Must(b, func() error {
			cmd := exec.Command(program, args...)
			cmd.Stdin, cmd.Stdout = strings.NewReader(input), &out
			return cmd.Run()
		})
		return out.String()
	}
	apply(objects) // loads the kernel's modules for it
	apply(marks.Objects{})
	var ours, floor, oursCPU, floorCPU time.Duration
	again, rounds := 0, 0
	for b.Loop() {
		begin, used := time.Now(), processorTime(b)
		apply(objects)
		ours += time.Since(begin)
		oursCPU += processorTime(b) - used
		again += apply(objects)
		four, six := run("", "iptables-save", "-t", "mangle"), run("", "ip6tables-save", "-t", "mangle")
		if strings.Count(four, "-A SKERRY-MARKS ") != 1067 || strings.Count(six, "-A SKERRY-MARKS ") != 67 {
			b.Fatalf("%d and %d rules", strings.Count(four, "-A SKERRY-MARKS "), strings.Count(six, "-A SKERRY-MARKS "))
		}
		apply(marks.Objects{})
		begin, used = time.Now(), processorTime(b)
		run(four, "iptables-restore", "--noflush", "-w", "10")
		run(six, "ip6tables-restore", "--noflush", "-w", "10")
		floor += time.Since(begin)
		floorCPU += processorTime(b) - used
		apply(marks.Objects{})
		rounds++
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(rounds) }
	b.ReportMetric(ms(ours), "ms-ours")
	b.ReportMetric(ms(floor), "ms-floor")
	b.ReportMetric(ms(ours)/ms(floor), "x-floor")
	b.ReportMetric(ms(oursCPU), "cpu-ms-ours")
	b.ReportMetric(ms(floorCPU), "cpu-ms-floor")
	b.ReportMetric(ms(oursCPU)/ms(floorCPU), "x-cpu")
	b.ReportMetric(float64(again), "writes-again")
}

// processorTime is the processor time of this process and of its children that have ended.
func processorTime(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
