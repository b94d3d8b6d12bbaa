package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// rebootMark is the file that the hook of the trial leaves on a device where a real one would
// reboot it.
const rebootMark = "/var/lib/skerry/reboot-asked"

// drainSettings make the times of a drain short, and the hooks harmless.
func drainSettings() []string {
	return []string{
		"modules.drain.interval=2s", "modules.drain.evictInterval=500ms", "modules.drain.retryInterval=500ms", "modules.drain.proceedAfter=5s",
		`modules.drain.hooks.reboot=echo "$SKERRY_NODE goes down for $SKERRY_OPERATION"; touch ` + rebootMark, `modules.drain.hooks.shutdown=""`,
		// An image is FILE@DIGEST, as a device with an image store of its own would name one.
		`modules.drain.hooks.prefetch=cp "${SKERRY_IMAGE%@*}" /var/lib/skerry/image.new && echo "${SKERRY_IMAGE#*@}  /var/lib/skerry/image.new" | sha256sum -c - && mv /var/lib/skerry/image.new /var/lib/skerry/image.next`,
		`modules.drain.hooks.update=mv /var/lib/skerry/image.next /var/lib/skerry/image.current && touch ` + rebootMark,
	}
}

// drains gives a test a namespace whose end no node operation outlives: all of them go, and both
// nodes take pods again.
func (s *system) drains() (namespace string) {
	s.T.Helper()
	namespace = s.Namespace()
	s.T.Cleanup(func() {
		ctx := context.Background()
		s.Mend(ctx)
		s.Must(s.Run(ctx, "kubectl", "delete", "nodeoperations", "--all"))
		s.WaitForIn(ctx, "both nodes to take pods again", func(ctx context.Context) error {
			nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, n := range nodes.Items {
				if by := n.Annotations[v1alpha1.CordonAnnotation]; n.Spec.Unschedulable || by != "" {
					return fmt.Errorf("%s is cordoned: %t, by %q", n.Name, n.Spec.Unschedulable, by)
				}
			}
			return nil
		})
	})
	return namespace
}

func nodeOperation(name, node, operation, more string) string {
	return fmt.Sprintf("apiVersion: skerry.io/v1alpha1\nkind: NodeOperation\nmetadata: {name: %s}\nspec: {nodeName: %s, operation: %s%s}\n", name, node, operation, more)
}

// web is an application that a PodDisruptionBudget named keep covers. It prefers a node, is not
// evicted for its node's absence, and waits for a place for ever.
func (s *system) web(namespace, prefers string, replicas int) {
	s.T.Helper()
	s.Apply(namespace, fmt.Sprintf(`apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: keep}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists, effect: NoExecute}]
      dnsPolicy: Default
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - {weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}}
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}
      containers: [{name: sample, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent}]
`, replicas, prefers))
	s.WaitPods(namespace, "app=web", "", replicas)
	s.WaitFor("the budget to be observed", func(ctx context.Context) error {
		p, err := s.Client.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "keep", metav1.GetOptions{})
		if err == nil && (p.Status.ObservedGeneration < p.Generation || int(p.Status.CurrentHealthy) < replicas) {
			err = fmt.Errorf("%+v", p.Status)
		}
		return err
	})
}

// loosen lets every pod of web go.
func (s *system) loosen(namespace string) {
	s.T.Helper()
	s.Kubectl("-n", namespace, "patch", "pdb", "keep", "--type=merge", "-p", `{"spec":{"minAvailable":0}}`)
}

// waitOperation waits for the cloud's state of an operation.
func (s *system) waitOperation(name, what string, is func(*v1alpha1.NodeOperation) bool) *v1alpha1.NodeOperation {
	s.T.Helper()
	var o *v1alpha1.NodeOperation
	s.WaitFor(fmt.Sprintf("operation %s: %s", name, what), func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "nodeoperation", name, "-o", "json")
		if err != nil {
			return err
		}
		o = &v1alpha1.NodeOperation{}
		if err := json.Unmarshal([]byte(out), o); err != nil {
			return err
		}
		if !is(o) {
			status, err := json.Marshal(o.Status)
			return errors.Join(err, fmt.Errorf("its status is %s", status))
		}
		return nil
	})
	return o
}

// isDone reports whether condition Done has a reason.
func isDone(reason string) func(*v1alpha1.NodeOperation) bool {
	return func(o *v1alpha1.NodeOperation) bool {
		return slices.ContainsFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.OperationDone && c.Reason == reason })
	}
}

// isHeld reports whether the budget holds exactly one pod.
func isHeld(o *v1alpha1.NodeOperation) bool {
	b := o.Status.BlockedPods
	return len(b) == 1 && b[0].PDB == "keep" && b[0].Reason == v1alpha1.BlockedByBudget && strings.HasPrefix(b[0].Name, "web-")
}

func (s *system) waitCordon(node string, cordoned bool, by string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s to be cordoned: %t", node, cordoned), func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && (n.Spec.Unschedulable != cordoned || n.Annotations[v1alpha1.CordonAnnotation] != by) {
			err = fmt.Errorf("cordoned %t, by %q", n.Spec.Unschedulable, n.Annotations[v1alpha1.CordonAnnotation])
		}
		return err
	})
}

// edgecore runs a command of edgecore on a node.
func (s *system) edgecore(node string, args ...string) (out string, code int, complaint string) {
	s.T.Helper()
	var o, e strings.Builder
	code, err := s.Trial.Exec(s.T.Context(), node, trial.Streams{Out: &o, Err: &e}, nil, filepath.Join(s.Root, "bin", "edgecore"), args...)
	s.Check(err)
	return o.String(), code, e.String()
}

// waitAsked waits until the hook has run on a node, and takes its mark away.
func (s *system) waitAsked(node string) {
	s.T.Helper()
	s.WaitFor("the reboot hook on "+node, func(context.Context) error {
		return os.Remove(s.path(node, rebootMark))
	})
}

// metric reads one line of a device's /metrics.
func (s *system) metric(node, name string) string {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	req, err := http.NewRequestWithContext(s.T.Context(), http.MethodGet, "http://127.0.0.1:10551/metrics", http.NoBody)
	s.Check(err)
	req.Header.Set("Authorization", "Bearer "+s.metricsToken(node))
	res, err := client.Do(req)
	s.Check(err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	s.Check(err)
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// metricsToken is the token for a device's metrics.
func (s *system) metricsToken(node string) string {
	s.T.Helper()
	raw, err := os.ReadFile(s.path(node, "/var/lib/skerry/metrics.token"))
	s.Check(err)
	return strings.TrimSpace(string(raw))
}

// logged are the steps of drains that a device's log has from a place on.
func (s *system) logged(node string, from int64) (steps []string, end int64) {
	s.T.Helper()
	raw, err := os.ReadFile(s.Trial.LogPath(node, "edgecore"))
	s.Check(err)
	for line := range bytes.Lines(raw[min(from, int64(len(raw))):]) {
		if _, rest, ok := bytes.Cut(line, []byte(`nodedrain-step="`)); ok {
			step, _, _ := bytes.Cut(rest, []byte(`"`))
			steps = append(steps, string(step))
		}
	}
	return steps, int64(len(raw))
}

// The progress of a drain requested in the cloud, as a person sees it on both sides; its end by
// deletion.
func TestDrain_01_KubectlAndTheDeviceShowTheDrain(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	s.reportEvents("edge1", true)
	_, from := s.logged("edge1", 0)
	before := s.metric("edge1", "skerry_drain_duration_seconds_count")
	s.Apply(ns, samplePod("bare", "edge1"))
	s.WaitPods(ns, "app=bare", "edge1", 1)
	s.Apply(ns, nodeOperation("one", "edge1", "Drain", ""))
	o := s.waitOperation("one", "done", isDone("Drained"))
	if o.Status.Phase != v1alpha1.DrainComplete || o.Status.Attempts != 1 || o.Status.RequestedBy != "kubernetes-admin" || o.Status.CompletedAt == nil {
		t.Errorf("its status: %+v", o.Status)
	}
	s.waitCordon("edge1", true, "edgecore")
	table := strings.Fields(s.Kubectl("get", "nodeoperations"))
	if want := []string{"NAME", "NODE", "OPERATION", "PHASE", "NO", "ATTEMPTS", "STATE", "AGE", "one", "edge1", "Drain", "Complete", "9", "1", "Drained"}; len(table) < len(want) || !slices.Equal(table[:len(want)], want) {
		t.Errorf("kubectl get nodeoperations: %q", table)
	}
	if out, _, _ := s.edgecore("edge1", "status"); !strings.Contains(out, "Complete, attempt 1 of 5") {
		t.Errorf("edgecore status:\n%s", out)
	}
	steps, _ := s.logged("edge1", from)
	if want := []string{"request", "starting", "cordoned", "attempt", "evict-progress", "complete"}; !slices.Equal(steps, want) {
		t.Errorf("the log has steps %v, want %v", steps, want)
	}
	if now := s.metric("edge1", "skerry_drain_duration_seconds_count"); before != "0" || now != "1" {
		t.Errorf("skerry_drain_duration_seconds_count was %s, is %s", before, now)
	}
	s.WaitFor("the node's events", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "events", "-A", "--field-selector=involvedObject.kind=Node,involvedObject.name=edge1", "-o", "jsonpath={.items[*].reason}")
		if err != nil {
			return err
		}
		for _, reason := range []string{"OperationWaiting", "DrainRequested", "DrainStarting", "DrainCordoned", "DrainAttempt", "DrainComplete", "OperationDone"} {
			if !slices.Contains(strings.Fields(out), reason) {
				return fmt.Errorf("there is no %s among %s", reason, out)
			}
		}
		return nil
	})
	s.Kubectl("delete", "nodeoperation", "one")
	s.waitCordon("edge1", false, "")
}

func TestDrain_02_BlockedPodsNameTheBudget(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	s.web(ns, "edge1", 1)
	s.WaitPods(ns, "app=web", "edge1", 1)
	s.Apply(ns, nodeOperation("one", "edge1", "Drain", ""))
	s.waitOperation("one", "held", isHeld)
	if out, _, _ := s.edgecore("edge1", "status"); !strings.Contains(out, "is held: DisruptionBudget keep") {
		t.Errorf("edgecore status:\n%s", out)
	}
	s.loosen(ns)
	if o := s.waitOperation("one", "done", isDone("Drained")); o.Status.Attempts != 1 || len(o.Status.BlockedPods) > 0 {
		t.Errorf("%d attempts, blocked %v; want the same attempt to end", o.Status.Attempts, o.Status.BlockedPods)
	}
	s.WaitPods(ns, "app=web", "edge2", 1)
}

// Whichever component dies, or is cut off, in mid-drain: it continues, with one cordon, and no
// attempt is used up.
func TestDrain_07_GoesOnWhoeverDies(t *testing.T) {
	replicas := options().Replicas()
	faults := map[string]struct{ begin, end func(*system) }{
		"cloudcore": {
			func(s *system) {
				for _, host := range replicas {
					s.Kill(host, "cloudcore")
				}
				s.waitUnlinked("edge1")
			},
			func(s *system) {
				for _, host := range replicas {
					s.Start(host, "cloudcore")
				}
			},
		},
		"edgecore": {func(s *system) { s.Kill("edge1", "edgecore") }, func(s *system) { s.Start("edge1", "edgecore") }},
		"kube-apiserver": {
			func(s *system) { s.Kill("cloud", "kubeplane") },
			func(s *system) { s.Start("cloud", "kubeplane") },
		},
		"the link": {
			func(s *system) {
				s.Cut("edge1")
				s.waitUnlinked("edge1")
				s.WaitFor("the device to say what it waits for", func(context.Context) error {
					if out, _, _ := s.edgecore("edge1", "operation", "list"); !strings.Contains(out, "the API can't be reached") {
						return errors.New(out)
					}
					return nil
				})
			},
			func(s *system) { s.Heal("edge1") },
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			ns := s.drains()
			s.web(ns, "edge1", 1)
			s.WaitPods(ns, "app=web", "edge1", 1)
			s.Apply(ns, nodeOperation("one", "edge1", "Reboot", ""))
			s.waitOperation("one", "held", isHeld)
			fault.begin(s)
			s.lasts("nothing goes ahead", 6*time.Second, func() error { // longer than any interval of the drain
				if _, err := os.Stat(s.path("edge1", rebootMark)); err == nil {
					return errors.New("the hook has run")
				}
				return nil
			})
			fault.end(s)
			s.waitLinked("edge1")
			s.loosen(ns)
			s.waitAsked("edge1")
			if o := s.waitOperation("one", "running", isDone("Running")); o.Status.Attempts != 1 || o.Status.Phase != v1alpha1.DrainComplete {
				t.Errorf("%d attempts, phase %s; want none used up", o.Status.Attempts, o.Status.Phase)
			}
			s.waitCordon("edge1", true, "edgecore")
		})
	}
}

// On the spot, without a link: it waits, reports that, and proceeds when the operator forces it.
// The cloud receives all that later.
func TestDrain_08_OperatorOnTheSpotForces(t *testing.T) {
	s := newSystem(t)
	s.drains()
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	out, code, complaint := s.edgecore("edge1", "operation", "reboot", "--name", "spot", "-o", "json")
	if code != 0 || !strings.Contains(out, `"name": "spot"`) {
		t.Fatalf("code %d: %s%s", code, out, complaint)
	}
	s.WaitFor("it to say that it waits", func(context.Context) error {
		if out, _, _ := s.edgecore("edge1", "operation", "list"); !strings.Contains(out, "the API can't be reached") {
			return errors.New(out)
		}
		return nil
	})
	if out, _, _ := s.edgecore("edge1", "status"); !strings.Contains(out, "Reboot spot: Waiting") {
		t.Errorf("edgecore status:\n%s", out)
	}
	if _, code, complaint := s.edgecore("edge1", "operation", "force", "spot"); code != 2 || !strings.Contains(complaint, "--complete") {
		t.Errorf("a force that does not say how: code %d, %s", code, complaint)
	}
	if _, code, complaint := s.edgecore("edge1", "operation", "force", "spot", "--complete"); code != 0 {
		t.Fatalf("code %d: %s", code, complaint)
	}
	s.waitAsked("edge1")
	if _, code, complaint := s.edgecore("edge1", "operation", "force", "spot", "--off"); code != 2 || !strings.Contains(complaint, "no longer waiting") {
		t.Errorf("a second force: code %d, %s", code, complaint)
	}
	s.Heal("edge1")
	o := s.waitOperation("spot", "shown in the cloud", isDone("Running"))
	if o.Status.RequestedBy != v1alpha1.RequestedOnDevice || o.Status.Phase != v1alpha1.DrainComplete || o.Spec.NodeName != "edge1" {
		t.Errorf("%+v", o)
	}
	s.Reboot("edge1", false)
	s.waitOperation("spot", "done", isDone("Booted"))
	s.waitCordon("edge1", false, "")

	// Proceed goes ahead by itself, Defer does not.
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	s.edgecore("edge1", "operation", "drain", "--name", "defers")
	s.edgecore("edge1", "operation", "reboot", "--name", "proceeds", "--when-unreachable", "Proceed")
	s.waitAsked("edge1")
	if out, _, _ := s.edgecore("edge1", "operation", "list"); !strings.Contains(out, "defers") || strings.Count(out, "Waiting") != 1 {
		t.Errorf("after one has gone ahead:\n%s", out)
	}
	if _, code, complaint := s.edgecore("edge1", "operation", "cancel", "defers"); code != 0 {
		t.Errorf("cancel: code %d, %s", code, complaint)
	}
	s.Heal("edge1")
	s.waitOperation("defers", "cancelled", isDone("Cancelled"))
}

// A reboot by a hook, asked for in the cloud.
func TestDrain_09_RebootByHookUncordons(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	s.web(ns, "edge1", 1)
	s.loosen(ns)
	s.Apply(ns, nodeOperation("one", "edge1", "Reboot", ", drainTimeout: 5m"))
	s.waitAsked("edge1")
	s.WaitPods(ns, "app=web", "edge2", 1)
	s.waitOperation("one", "running", isDone("Running"))
	s.Reboot("edge1", false)
	o := s.waitOperation("one", "done", isDone("Booted"))
	if st := o.Status; st.BootIDBefore == "" || st.BootIDAfter == "" || st.BootIDBefore == st.BootIDAfter || st.ExitCode == nil || *st.ExitCode != 0 || st.Output != "edge1 goes down for one\n" {
		t.Errorf("its status: %+v", st)
	}
	s.waitCordon("edge1", false, "")
	s.WaitReady("edge1", true)
	s.lasts("it happens once", 3*time.Second, func() error {
		if _, err := os.Stat(s.path("edge1", rebootMark)); err == nil {
			return errors.New("the hook has run again")
		}
		return nil
	})
}

func TestDrain_09_AdministratorsCordonStays(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	t.Cleanup(func() { s.Must(s.Run(context.Background(), "kubectl", "uncordon", "edge1")) })
	s.Kubectl("cordon", "edge1")
	s.Apply(ns, nodeOperation("one", "edge1", "Reboot", ""))
	s.waitAsked("edge1")
	s.Reboot("edge1", false)
	s.waitOperation("one", "done", isDone("Booted"))
	s.WaitReady("edge1", true)
	s.lasts("the administrator's cordon stays", 3*time.Second, func() error {
		n, err := s.Client.CoreV1().Nodes().Get(t.Context(), "edge1", metav1.GetOptions{})
		if err == nil && !n.Spec.Unschedulable {
			err = errors.New("it was taken back")
		}
		return err
	})
}

// Both nodes at once: one ends, the other names which budget holds it, and ends too when the first
// takes pods again.
func TestDrain_10_BothNodesAtOnceEnd(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	s.web(ns, "edge1", 2)
	s.Apply(ns, nodeOperation("one", "edge1", "Drain", "")+"---\n"+nodeOperation("two", "edge2", "Drain", ""))
	var first, second string
	s.WaitFor("one to end, and the other to be held", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "nodeoperations", "-o", "json")
		if err != nil {
			return err
		}
		var all v1alpha1.NodeOperationList
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			return err
		}
		first, second = "", ""
		for _, o := range all.Items {
			switch {
			case isDone("Drained")(&o) && o.Status.Phase == v1alpha1.DrainComplete:
				first = o.Name
			case isHeld(&o):
				second = o.Name
			}
		}
		if first == "" || second == "" {
			return errors.New(out)
		}
		return nil
	})
	s.Kubectl("patch", "nodeoperation", first, "--type=merge", "-p", `{"spec":{"cancel":true}}`)
	s.waitOperation(second, "done", isDone("Drained"))
}

// Rule 9: traffic moves first. An operator's own maintenance is not ended by a drain.
func TestDrain_09_VirtualIPsMoveBeforeTheFirstEviction(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	s.shop()
	s.waitShop(2)
	holder := s.waitShopAt("edge1", "edge2")
	s.Apply(ns, samplePod("bare", holder))
	s.WaitPods(ns, "app=bare", holder, 1)
	watch, err := s.Client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
	s.Check(err)
	defer watch.Stop()
	s.Apply(ns, nodeOperation("one", holder, "Drain", ""))
	for e := range watch.ResultChan() {
		if p, err := meta.Accessor(e.Object); err == nil && p.GetDeletionTimestamp() != nil {
			break
		}
	}
	if all := s.shopHolders(); !slices.Equal(all, []string{otherEdge(holder)}) {
		t.Errorf("when the first pod was evicted the address was at %v, want %s", all, otherEdge(holder))
	}
	s.Check(s.buys(t.Context()))
	s.waitOperation("one", "done", isDone("Drained"))
	if out, _, _ := s.edgecore(holder, "status"); !strings.Contains(out, "handed over for a drain") {
		t.Errorf("edgecore status:\n%s", out)
	}
	s.Kubectl("delete", "nodeoperation", "one")
	s.waitShop(2) // it takes part again

	s.onHost(holder, s.Root+"/bin/edgecore", "maintenance", "on")
	s.Apply(ns, nodeOperation("two", holder, "Drain", ""))
	s.waitOperation("two", "done", isDone("Drained"))
	s.Kubectl("delete", "nodeoperation", "two")
	s.waitCordon(holder, false, "")
	s.WaitFor("the operator's maintenance alone to be left", func(context.Context) error {
		out, _, _ := s.edgecore(holder, "status")
		if !strings.Contains(out, "under maintenance") || strings.Contains(out, "for a drain") {
			return errors.New(out)
		}
		return nil
	})
	s.onHost(holder, s.Root+"/bin/edgecore", "maintenance", "off")
}

// An impossible operation is refused with its reason when it is requested; one that a node may not
// make is refused by Kubernetes.
func TestDrain_11_RefusedWhenAskedFor(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	if _, code, complaint := s.edgecore("edge1", "operation", "shutdown"); code != 2 || !strings.Contains(complaint, "no hook is configured") {
		t.Errorf("a shutdown without a hook: code %d, %s", code, complaint)
	}
	if _, code, complaint := s.edgecore("edge1", "operation", "melt"); code != 2 || !strings.Contains(complaint, "melt") {
		t.Errorf("an unknown operation: code %d, %s", code, complaint)
	}
	if _, code, complaint := s.edgecore("edge1", "operation", "cancel", "absent"); code != 2 || !strings.Contains(complaint, "no operation of this name") {
		t.Errorf("an unknown name: code %d, %s", code, complaint)
	}
	s.Apply(ns, nodeOperation("refused", "edge1", "Shutdown", ""))
	o := s.waitOperation("refused", "refused", isDone("Refused"))
	if c := o.Status.Conditions; !slices.ContainsFunc(c, func(c metav1.Condition) bool {
		return c.Type == v1alpha1.OperationFailed && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, "no hook is configured")
	}) {
		t.Errorf("its conditions: %+v", c)
	}
	// As the device's root, with its node's identity; and as an administrator, where the object
	// makes no sense.
	asked := func(name, text string, run func(file string) (string, error), want string) {
		t.Helper()
		file := filepath.Join(s.T.TempDir(), name)
		s.Check(os.WriteFile(file, []byte(text), 0o600))
		if out, err := run(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v; want %q", name, out, err, want)
		}
	}
	device := func(file string) (string, error) {
		return s.TryEdgeKubectl(t.Context(), "edge1", "create", "--validate=false", "-f", file)
	}
	admin := func(file string) (string, error) { return s.Run(t.Context(), "kubectl", "create", "-f", file) }
	asked("another-node", nodeOperation("theirs", "edge2", "Reboot", ""), device, "a node makes operations of its own")
	asked("no-image", nodeOperation("update", "edge1", "ImageUpdate", ""), admin, "image is needed")
	asked("no-time", nodeOperation("hasty", "edge1", "Drain", ", drainTimeout: 0s"), admin, "at least 1s")
	asked("no-operation", nodeOperation("melt", "edge1", "Melt", ""), admin, "Unsupported value")
	for _, args := range [][]string{{"patch", "nodeoperation", "refused", "--type=merge", "-p", `{"spec":{"cancel":true}}`}, {"delete", "nodeoperation", "refused"}} {
		if out, err := s.TryEdgeKubectl(t.Context(), "edge1", args...); err == nil || !strings.Contains(err.Error(), "orbidden") {
			t.Errorf("%v as the node: %s, %v", args, out, err)
		}
	}
	if out, err := s.Run(t.Context(), "kubectl", "annotate", "nodeoperation", "refused", "--overwrite", "skerry.io/requested-by=another-user"); err == nil {
		t.Errorf("the requester was changed: %s", out)
	}
}
