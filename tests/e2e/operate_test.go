package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/hollow"
)

// device is an item of `kubectl skerry status -o json`.
type device struct {
	Name, Link, Transport, Version, Ready string
	Since, LastContact, CertificateEnd    *time.Time
	Backlog                               int
	Problems                              []struct{ Reason, Message, Action string }
}

func (d device) reasons() (all []string) {
	for _, p := range d.Problems {
		all = append(all, p.Reason)
	}
	return all
}

// fleetStatus asks for the status of the fleet; well: the command ended with 0.
func (s *system) fleetStatus(ctx context.Context, args ...string) (devices map[string]device, well bool, err error) {
	out, failed := s.Run(ctx, append([]string{"kubectl", "skerry", "status", "-o", "json"}, args...)...)
	var list struct{ Items []device }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, false, fmt.Errorf("reading %.300q: %w", out, errors.Join(err, failed))
	}
	devices = map[string]device{}
	for _, d := range list.Items {
		devices[d.Name] = d
	}
	return devices, failed == nil, nil
}

// addHollow links nodes without kubelets until they are removed or the test ends.
func (s *system) addHollow(nodes int) (remove func()) {
	s.T.Helper()
	roots, err := hollow.Roots(s.T.Context(), s.Client)
	s.Check(err)
	h, err := s.Trial.Host(trial.Cloud)
	s.Check(err)
	pki := filepath.Join(h.Root(), "var/lib/kubeplane/pki")
	env, err := s.Trial.Env()
	s.Check(err)
	server := ""
	for _, v := range env {
		if v.Name == "TRIAL_CLOUD" {
			server = v.Value
		}
	}
	fleet, err := hollow.New(hollow.Config{
		Nodes: nodes, Server: server, ServerName: lab.Cloud().String(), Transport: link.WebSocket, Roots: roots,
		Identity: hollow.FromCA(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key")),
	})
	s.Check(err)
	s.Check(fleet.Allow(s.T.Context(), s.Client))
	ctx, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(s.T.Context()), klog.New(nil)))
	done := make(chan error, 1)
	go func() { done <- fleet.Run(ctx) }()
	remove = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, fleet.Remove(context.WithoutCancel(ctx), s.Client)); err != nil {
			s.T.Error(err)
		}
	})
	s.T.Cleanup(remove)
	s.Check(fleet.AwaitWhole(s.T.Context()))
	return remove
}

// holdWrites has kube-apiserver refuse a node's status updates until they are released or the test
// ends: the device has a backlog, and its link is up.
func (s *system) holdWrites(node string) (release func()) {
	s.T.Helper()
	nowhere, fail, none, second := "https://127.0.0.1:1/", admissionv1.Fail, admissionv1.SideEffectClassNone, int32(1)
	hooks := s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	hook, err := hooks.Create(s.T.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "hold-writes-"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "hold.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &nowhere}, FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: &second,
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/status", "nodes/status"}},
			}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "node", Expression: fmt.Sprintf("request.userInfo.username == 'system:node:%s'", node)}},
		}},
	}, metav1.CreateOptions{})
	s.Check(err)
	release = func() { _ = hooks.Delete(context.WithoutCancel(s.T.Context()), hook.Name, metav1.DeleteOptions{}) }
	s.T.Cleanup(release)
	return release
}

// watched are the lines of a `kubectl skerry status -w` that runs until the test ends.
type watched struct {
	s     *system
	lines chan string
	seen  []string
}

// watchStatus follows one device, and returns once its first row is there.
func (s *system) watchStatus(node string, args ...string) *watched {
	s.T.Helper()
	args = append([]string{"kubectl", "skerry", "status", "-w", "-l", "kubernetes.io/hostname=" + node}, args...)
	c := exec.CommandContext(context.WithoutCancel(s.T.Context()), filepath.Join(s.Root, "bin", "trial"), args...)
	c.Env = append(os.Environ(), "TRIAL_DIR="+s.Dir)
	c.WaitDelay = 5 * time.Second
	out, err := c.StdoutPipe()
	s.Check(err)
	s.Check(c.Start())
	w := &watched{s: s, lines: make(chan string, 1000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case w.lines <- lines.Text():
			default: // more than a device in a test has to tell
			}
		}
	}()
	s.T.Cleanup(func() {
		_ = c.Cancel()
		<-ended
		_ = c.Wait() // it was killed
	})
	w.await(node+" ", " Up ")
	return w
}

// await waits for a line with a beginning and parts.
func (w *watched) await(prefix string, parts ...string) {
	w.s.T.Helper()
	w.s.WaitFor(fmt.Sprintf("status -w to print %q with %q", prefix, parts), func(ctx context.Context) error {
		for {
			select {
			case line := <-w.lines:
				w.seen = append(w.seen, line)
				if strings.HasPrefix(line, prefix) && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
					return nil
				}
			case <-ctx.Done():
				return fmt.Errorf("it printed %q", w.seen)
			}
		}
	})
}

// Twenty-two devices on one screen: one is cut, one has an old backlog.
func TestOperate_01_StatusShowsTheFleetOnOneScreen(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	s.addHollow(20)
	ns := s.Namespace()
	live := s.watchStatus("edge1")
	release := s.holdWrites("edge2")
	s.Apply(ns, `
apiVersion: v1
kind: Pod
metadata: {name: untold}
spec:
  nodeName: edge2
  containers: [{name: c, image: "nowhere.invalid/none:1", imagePullPolicy: Never}]
`)
	s.Cut("edge1")
	s.WaitFor("edge1 to be down and edge2's backlog to be old", func(ctx context.Context) error {
		all, well, err := s.fleetStatus(ctx, "--backlog-age", "10s")
		if err != nil {
			return err
		}
		if well {
			return errors.New("the command ended with 0")
		}
		if d := all["edge1"]; d.Link != "Down" || !slices.Contains(d.reasons(), "LinkDown") {
			return fmt.Errorf("edge1: %+v", d)
		}
		if d := all["edge2"]; d.Link != "Up" || d.Backlog == 0 || !slices.Contains(d.reasons(), "BacklogOld") {
			return fmt.Errorf("edge2: %+v", d)
		}
		return nil
	})
	live.await("edge1 ", " Down ", "link down, last contact ")
	all, _, err := s.fleetStatus(t.Context())
	s.Check(err)
	if len(all) != 22 {
		t.Errorf("%d devices, want 22", len(all))
	}
	for name, d := range all {
		if name != "edge1" && d.Link != "Up" || d.Transport == "" || d.Version == "" || d.Since == nil || d.CertificateEnd == nil {
			t.Errorf("%s: %+v", name, d)
		}
		for _, p := range d.Problems {
			if p.Action == "" {
				t.Errorf("%s: the problem %q has no remedy", name, p.Message)
			}
		}
	}
	out, err := s.Run(t.Context(), "kubectl", "skerry", "status", "--backlog-age", "10s")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var remedies []string
	if at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "-> ") }); at > 0 {
		lines, remedies = lines[:at], lines[at:]
	}
	for _, want := range []string{"-> LinkDown (edge1): on the device: edgecore status", "-> BacklogOld (edge2): `kubectl skerry node edge2`"} {
		if !slices.ContainsFunc(remedies, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("the remedies %q lack %q", remedies, want)
		}
	}
	if err == nil || len(lines) != 24 || !strings.HasPrefix(lines[0], "22 devices: 21 up, 1 down; ") || !strings.HasPrefix(lines[1], "NAME ") ||
		!strings.HasPrefix(lines[2], "edge1 ") || !strings.Contains(lines[2], "link down, last contact ") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log("\n" + strings.Join(lines[:min(len(lines), 6)], "\n"))
	some, _, err := s.fleetStatus(t.Context(), "-l", "kubernetes.io/hostname=edge2")
	if s.Check(err); len(some) != 1 {
		t.Errorf("of one label: %v", some)
	}

	release()
	s.Heal("edge1")
	live.await("edge1 ", " Up ")
	s.Kubectl("delete", "pod", "-n", ns, "untold", "--grace-period=1")
	s.WaitFor("both to be well", func(ctx context.Context) error {
		all, well, err := s.fleetStatus(ctx, "-l", "kubernetes.io/hostname in (edge1, edge2)", "--backlog-age", "10s")
		if err == nil && !well {
			err = fmt.Errorf("%+v", all)
		}
		return err
	})
}

// One device: its own status by whichever replica has its link, and the last known state.
func TestOperate_02_NodeLiveAndAsLastKnown(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	for replica := 1; replica <= 2; replica++ {
		s.askReplica(replica)
		out := s.Kubectl("skerry", "node", "edge1")
		for _, want := range []string{"node ", "edge1", "link ", "up for ", "certificate ", "static routes "} {
			if !strings.Contains(strings.ToLower(out), want) {
				t.Errorf("by replica %d it lacks %q:\n%s", replica, want, out)
			}
		}
	}
	var own struct {
		Node    string
		Running bool
		Link    struct{ Linked bool }
	}
	if err := json.Unmarshal([]byte(s.Kubectl("skerry", "node", "edge1", "-o", "json")), &own); err != nil || own.Node != "edge1" || !own.Running || !own.Link.Linked {
		t.Errorf("%v: %+v", err, own)
	}
	s.Cut("edge1")
	s.WaitFor("what was last known", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "skerry", "node", "edge1")
		if err == nil || !strings.Contains(err.Error(), "this is what was last known, ") || !strings.Contains(err.Error(), " old; the device could not be asked: ") || !strings.Contains(err.Error(), " no link") ||
			!strings.Contains(out, "link           Down for ") || !strings.Contains(out, "-> on the device: edgecore status") {
			return fmt.Errorf("got %w\n%s", err, out)
		}
		return nil
	})
	if _, err := s.Run(t.Context(), "kubectl", "skerry", "node", "nosuch"); err == nil || !strings.Contains(err.Error(), "there is no device nosuch") {
		t.Errorf("of a typing error: %v", err)
	}
}

// bindUser makes a user who has a ClusterRole until the test ends.
func (s *system) bindUser(role string) (user string) {
	s.T.Helper()
	bindings := s.Client.RbacV1().ClusterRoleBindings()
	user = "user-of-" + strings.NewReplacer(":", "-", "/", "-").Replace(role)
	b, err := bindings.Create(s.T.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "operate-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	s.Check(err)
	s.T.Cleanup(func() { _ = bindings.Delete(context.WithoutCancel(s.T.Context()), b.Name, metav1.DeleteOptions{}) })
	return user
}

// The ClusterRole is enough; with one right less, of a resource or of a verb, the command names
// that one.
func TestOperate_13_ViewersRightsSuffice(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	roles := s.Client.RbacV1().ClusterRoles()
	commands := [][]string{{"status", "-o", "json"}, {"operations"}, {"node", "edge1"}, {"rehearse", "edge1"}, {"bundle", "edge1", "-o", filepath.Join(t.TempDir(), "b")}, {"recorder", "edge1"}, {"top"}}
	user := s.bindUser("skerry:viewer")
	for _, c := range commands {
		s.WaitFor(fmt.Sprint(c, " as a viewer"), func(ctx context.Context) error {
			_, err := s.Run(ctx, append([]string{"kubectl", "skerry", "--as", user}, c...)...)
			return err
		})
	}
	live, ns := s.watchStatus("edge1", "--as", user), s.Namespace()
	s.Apply(ns, "apiVersion: v1\nkind: Pod\nmetadata: {name: seen}\nspec: {nodeName: edge1, containers: [{name: c, image: 'nowhere.invalid/none:1', imagePullPolicy: Never}]}\n")
	live.await("edge1 ") // its pods have changed
	viewer, err := roles.Get(t.Context(), "skerry:viewer", metav1.GetOptions{})
	s.Check(err)
	needs := map[string][]string{"nodes": commands[0], "pods": commands[0], "leases": commands[0], "nodeoperations": commands[1], "nodeoperationsets": commands[1], "nodes/status": commands[2], "nodes/rehearsal": commands[3], "nodes/log": commands[4], "nodes/recorder": commands[5]}
	page := []string{"events", "staticroutes", "virtualips"} // without one the page names it, and shows the rest: TestOperate_08
	for _, rule := range viewer.Rules {
		for _, resource := range rule.Resources {
			command := needs[resource]
			if slices.Contains(page, resource) {
				continue
			}
			if command == nil {
				t.Errorf("no command needs %s", resource)
				continue
			}
			s.isNamed("", resource, rule, viewer.Rules, command)
			if slices.Contains(rule.Verbs, "watch") && resource != "nodeoperationsets" { // kubectl get --watch alone watches these
				s.isNamed("watch", resource, rule, viewer.Rules, []string{"status", "-w"})
			}
		}
	}
}

// isNamed checks that the error of a command names a right that its user's role lacks: of a
// resource of a rule, all verbs, or one.
func (s *system) isNamed(verb, resource string, rule rbacv1.PolicyRule, rules []rbacv1.PolicyRule, command []string) {
	s.T.Helper()
	less := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: strings.Join([]string{"less", verb, strings.ReplaceAll(resource, "/", "-")}, "-")}}
	for _, r := range rules {
		r.Resources = slices.DeleteFunc(slices.Clone(r.Resources), func(one string) bool { return one == resource && slices.Equal(r.APIGroups, rule.APIGroups) })
		if len(r.Resources) > 0 {
			less.Rules = append(less.Rules, r)
		}
	}
	missing := fmt.Sprintf("resource %q in API group %q", resource, rule.APIGroups[0])
	if verb != "" {
		missing = "cannot " + verb + " " + missing
		others := slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == verb })
		less.Rules = append(less.Rules, rbacv1.PolicyRule{APIGroups: rule.APIGroups, Resources: []string{resource}, Verbs: others})
	}
	roles := s.Client.RbacV1().ClusterRoles()
	_, err := roles.Create(s.T.Context(), less, metav1.CreateOptions{})
	s.Check(err)
	s.T.Cleanup(func() { _ = roles.Delete(context.WithoutCancel(s.T.Context()), less.Name, metav1.DeleteOptions{}) })
	user := s.bindUser(less.Name)
	s.WaitFor("the missing right to be named", func(ctx context.Context) error {
		_, err := s.Run(ctx, append([]string{"kubectl", "skerry", "--as", user}, command...)...)
		if err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "skerry:viewer") {
			return fmt.Errorf("without %s of %s: %w", verb, resource, err)
		}
		return nil
	})
}

// The metrics of the two programs pass `promtool check metrics`, and all are in docs/metrics.md;
// each linked node has its series at the replica that has its link.
func TestMetrics_AreDocumentedAndLinted(t *testing.T) {
	s := newSystem(t)
	page, err := os.ReadFile(filepath.Join(s.Root, "docs", "metrics.md"))
	s.Check(err)
	family := regexp.MustCompile(`(?m)^# TYPE (skerry_\w+) `)
	read := func(ctx context.Context, host, url, token string) ([]byte, error) {
		h, err := s.Trial.Host(host)
		s.Check(err)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		s.Check(err)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := (&http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}}).Do(r)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(res.Body)
		return body, errors.Join(err, res.Body.Close())
	}
	const cloud = "http://127.0.0.1:10003/metrics"
	replicas := options().Replicas()
	for _, at := range []struct{ host, url, token string }{
		{replicas[0], cloud, ""}, {replicas[1], cloud, ""}, {"edge1", "http://127.0.0.1:10551/metrics", s.metricsToken("edge1")},
	} {
		body, err := read(t.Context(), at.host, at.url, at.token)
		s.Check(err)
		families := family.FindAllSubmatch(body, -1)
		if len(families) < 20 {
			t.Errorf("%s: %d families: %.300s", at.host, len(families), body)
		}
		for _, f := range families {
			if !strings.Contains(string(page), "| `"+string(f[1])+"` |") {
				t.Errorf("%s: %s is not in docs/metrics.md", at.host, f[1])
			}
		}
		lint := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
		lint.Stdin = bytes.NewReader(body)
		if out, err := lint.CombinedOutput(); err != nil {
			t.Errorf("%s: promtool check metrics: %v\n%s", at.host, err, out)
		}
	}
	alive := regexp.MustCompile(`(?m)^skerry_node_kubelet_alive\{node="(\w+)"\} 1$`)
	s.WaitFor("each linked node to have series", func(ctx context.Context) error {
		nodes := map[string]bool{}
		for _, replica := range replicas {
			body, err := read(ctx, replica, cloud, "")
			if err != nil {
				return err
			}
			for _, found := range alive.FindAllSubmatch(body, -1) {
				nodes[string(found[1])] = true
			}
		}
		if !nodes["edge1"] || !nodes["edge2"] {
			return fmt.Errorf("they are %v", nodes)
		}
		return nil
	})
}
