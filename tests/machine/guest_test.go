package machine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/machine"
)

// run runs a script in the guest, which must succeed.
func (s *system) run(script string) string {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), patience)
	defer cancel()
	out, err := s.guest.Run(ctx, script)
	s.Check(err)
	return out
}

// await runs a script in the guest once that answers. A script that waits costs the guest less than
// one that is run again and again.
func (s *system) await(what, script string) (out string) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), patience)
	defer cancel()
	began := time.Now()
	err := poll.Until(ctx, time.Second, func(ctx context.Context) (err error) {
		out, err = s.guest.Run(ctx, script)
		return err
	})
	if err != nil {
		console, _ := os.ReadFile(s.guest.Console())
		s.T.Fatalf("waited %v for %s: %v\nits processes: %s\nend of the console:\n%s", time.Since(began).Round(time.Second), what, err, s.guest.Processes(), console[max(0, len(console)-3000):])
	}
	s.T.Logf("waited %v for %s", time.Since(began).Round(time.Second), what)
	return out
}

// container is a container of the test's pods, or the sandbox of one.
type container struct{ pod, id string }

var ofContainer = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f_-]{27}).*([0-9a-f]{64})`)

// parse reads the output of the function cgroups.
func (s *system) parse(cgroups string) []container {
	var all []container
	for _, m := range ofContainer.FindAllStringSubmatch(cgroups, -1) {
		uid := strings.ReplaceAll(m[1], "_", "-")
		if slices.ContainsFunc(s.pods, func(p corev1.Pod) bool { return string(p.UID) == uid }) {
			all = append(all, container{uid, m[2]})
		}
	}
	slices.SortFunc(all, func(a, b container) int { return strings.Compare(a.pod+a.id, b.pod+b.id) })
	return slices.Compact(all)
}

// containers is how many containers the pods have, sandboxes and sidecars among them.
func (s *system) containers() (count int) {
	for _, p := range s.pods {
		count += 1 + len(p.Spec.Containers)
		for _, c := range p.Spec.InitContainers {
			if c.RestartPolicy != nil {
				count++
			}
		}
	}
	return count
}

// running are the containers that run.
func (s *system) running() []container {
	s.T.Helper()
	all := s.parse(s.run(machine.Cgroups + "cgroups"))
	if len(all) != s.containers() {
		s.T.Fatalf("%d containers run for %d pods: %v", len(all), len(s.pods), all)
	}
	return all
}

// again waits until each pod has its containers and its sandbox, all others than before, and until
// the device has all pods Running and Ready.
func (s *system) again(before []container) {
	s.T.Helper()
	now := s.parse(s.await("the pods to run again", machine.Cgroups+fmt.Sprintf("until [ $(count) -ge %d ]; do sleep 3; done; cgroups", s.containers())))
	uids := func(all []container) (uids []string) {
		for _, c := range all {
			uids = append(uids, c.pod)
		}
		return uids
	}
	if diff := cmp.Diff(uids(before), uids(now)); diff != "" {
		s.T.Fatalf("other pods run (-before +now):\n%s", diff)
	}
	if slices.ContainsFunc(now, func(c container) bool { return slices.Contains(before, c) }) {
		s.T.Errorf("a container of before the boot runs: %v", now)
	}
	s.await("the device to have them Running", allRunning(len(s.pods)))
}

// allRunning waits for the device to have all its pods Running. A start of edgecore takes a guest a
// second and a half of its processor.
func allRunning(pods int) string {
	return fmt.Sprintf("until edgecore status | grep -q '^pods *%d of %[1]d running$'; do sleep 5; done", pods)
}

// same fails where other containers run than before.
func (s *system) same(before []container, after string) {
	s.T.Helper()
	if diff := cmp.Diff(before, s.running(), cmp.AllowUnexported(container{})); diff != "" {
		s.T.Errorf("after %s (-before +now):\n%s", after, diff)
	}
}

// follow notes pods that are made, deleted or ended, as the cloud sees it.
func (s *system) follow() (changed func() []string) {
	s.T.Helper()
	list, err := s.Client.CoreV1().Pods(s.namespace).List(s.T.Context(), metav1.ListOptions{})
	s.Check(err)
	known := map[types.UID]bool{}
	for _, p := range list.Items {
		known[p.UID] = true
	}
	w, err := s.Client.CoreV1().Pods(s.namespace).Watch(s.T.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	s.Check(err)
	var mu sync.Mutex
	seen := map[string]bool{}
	go func() {
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if ok && known[p.UID] && p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
				continue
			}
			entry := fmt.Sprintf("%s %T", e.Type, e.Object) // the watch has failed
			if ok {
				entry = fmt.Sprintf("%s %s %s", e.Type, p.Name, p.Status.Phase)
			}
			mu.Lock()
			seen[entry] = true
			mu.Unlock()
		}
	}()
	s.T.Cleanup(w.Stop)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(maps.Keys(seen))
	}
}

// unchanged gives the machine its link, and fails where the cloud saw a pod end, go or come.
func (s *system) unchanged(changed func() []string) {
	s.T.Helper()
	s.heal()
	uids := func(pods []corev1.Pod) map[string]types.UID {
		all := map[string]types.UID{}
		for _, p := range pods {
			all[p.Name] = p.UID
		}
		return all
	}
	if diff := cmp.Diff(uids(s.pods), uids(s.awaitPods(len(s.pods)))); diff != "" {
		s.T.Errorf("other pods (-before +after):\n%s", diff)
	}
	if all := changed(); len(all) > 0 {
		s.T.Errorf("the cloud saw %q", all)
	}
}

// cut takes the link away.
func (s *system) cut() { s.CutSilently(node) }

// heal gives it back, and waits for the cloud to see the machine Ready again with its pods.
func (s *system) heal() {
	s.T.Helper()
	s.Heal(node)
	s.await("the link", "until edgecore status | grep -q '^link *up '; do sleep 3; done")
	s.WaitReady(node, true)
	s.awaitPods(len(s.pods))
}

// reboots asks for the next boot by a script, and waits for it. It returns the boot that has ended.
func (s *system) reboots(script string) (ended string) {
	s.T.Helper()
	ended, err := s.guest.BootID(s.T.Context())
	s.Check(err)
	_, err = s.guest.Run(s.T.Context(), script) // the boot may end the connection
	if err != nil && !errors.Is(err, machine.ErrSilent) {
		s.T.Fatal(err)
	}
	s.await("the next boot", "until [ $(cat /proc/sys/kernel/random/boot_id) != "+ended+" ]; do sleep 1; done")
	return ended
}

// ended checks how a boot has ended: edgecore gave up its lock in time, each container got SIGTERM,
// and the critical pod's after the others had ended. It removes the notes.
func (s *system) ended(boot string) {
	s.T.Helper()
	log := s.run("journalctl --boot=" + strings.ReplaceAll(boot, "-", "") + " --no-pager --unit=systemd-logind --unit=edgecore | cut -c -300")
	if strings.Contains(log, "inhibitor timeout is reached") || !strings.Contains(log, "Ending containers") {
		s.T.Errorf("the shutdown:\n%s", log)
	}
	lines := strings.Split(strings.TrimSpace(s.run("cat "+notes+"; rm "+notes)), "\n")
	signalled, last := map[string]bool{}, ""
	for _, line := range lines {
		pod, _, _ := strings.Cut(line, " ")
		if strings.Contains(line, " sigterm ") {
			signalled[pod], last = true, pod
		}
	}
	for _, p := range s.pods {
		if !signalled[p.Name] {
			s.T.Errorf("%s got no SIGTERM", p.Name)
		}
	}
	if last != "critical" {
		s.T.Errorf("the last SIGTERM was that of %s:\n%s", last, strings.Join(lines, "\n"))
	}
}
