package e2e_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// monitoring is a Prometheus and an Alertmanager that watch the trial by the project's own rules,
// with a second in place of a minute. It belongs to the test's goroutine.
type monitoring struct {
	s                  *system
	prometheus, alerts string // their URLs
}

// shortened are the rules with a second in place of each minute. A day stays long: what was there
// before is remembered for the whole test.
func shortened(rules string) string {
	rules = strings.NewReplacer("sessions_total[30m]", "sessions_total[90s]", "refused_total[30m]", "refused_total[30s]", "[1d]", "[30m]", "[1h:1m]", "[20s:1s]", "[1h]", "[20s]", "offset 1h", "offset 20s", "> 600", "> 10", "> 7200", "> 10", "> 120)", "> 2)").Replace(rules)
	rules = regexp.MustCompile(`\[(\d+)m\]`).ReplaceAllStringFunc(rules, func(m string) string {
		if m == "[30m]" {
			return m
		}
		return strings.TrimSuffix(m, "m]") + "s]"
	})
	rules = regexp.MustCompile(`for: (\d+)m`).ReplaceAllString(rules, "for: ${1}s")
	return strings.ReplaceAll(rules, "for: 1h", "for: 20s")
}

// monitor starts both programs; they end with the test.
func (s *system) monitor() *monitoring {
	s.T.Helper()
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(s.Root, "manifests", "monitoring", name))
		s.Check(err)
		return string(raw)
	}
	dir := s.T.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		s.Check(os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	var object struct {
		Spec any `json:"spec"`
	}
	s.Check(yaml.Unmarshal([]byte(shortened(read("rules.yaml"))), &object))
	rules, err := yaml.Marshal(object.Spec)
	s.Check(err)
	write("rules.yaml", string(rules))

	targets := s.targets()
	objects := s.kubeStateMetrics(dir, write("objects.yaml", read("kube-state-metrics.yaml")), read("kube-state-metrics-role.yaml"))
	prom, alertmanager := freePort(s), freePort(s)
	var scrapes strings.Builder
	for _, name := range options().Replicas() {
		fmt.Fprintf(&scrapes, "- {job_name: %s, metrics_path: /%s, static_configs: [{targets: [%q]}]}\n", name, name, targets)
	}
	fmt.Fprintf(&scrapes, "- {job_name: objects, static_configs: [{targets: [%q]}]}\n", objects)
	write("prometheus.yml", fmt.Sprintf("global: {scrape_interval: 2s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nalerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}\nscrape_configs:\n%s",
		alertmanager, scrapes.String()))
	inhibit := write("alertmanager.yml", "route: {receiver: none, group_wait: 0s, group_interval: 1s}\nreceivers: [{name: none}]\n"+read("inhibit.yaml"))
	s.runProgram(dir, "prometheus-alertmanager", "--config.file="+inhibit, "--storage.path="+filepath.Join(dir, "am"), "--web.listen-address="+alertmanager, "--cluster.listen-address=")
	s.runProgram(dir, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+prom)
	m := &monitoring{s, "http://" + prom, "http://" + alertmanager}
	s.WaitFor("Prometheus to have scraped", func(ctx context.Context) error {
		found, err := m.query(ctx, "skerry_node_link_info and on () skerry:node_pool")
		if err == nil && len(found) < 2 {
			err = fmt.Errorf("%d links", len(found))
		}
		return err
	})
	return m
}

func freePort(s *system) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.Check(err)
	defer l.Close()
	return l.Addr().String()
}

func (s *system) runProgram(dir, name string, args ...string) {
	s.T.Helper()
	log, err := os.Create(filepath.Join(dir, filepath.Base(name)+".log"))
	s.Check(err)
	c := exec.CommandContext(context.WithoutCancel(s.T.Context()), name, args...)
	c.Dir, c.Stdout, c.Stderr = dir, log, log
	if err := c.Start(); err != nil {
		s.T.Fatalf("%v: make deps installs it", err)
	}
	s.T.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = log.Close()
		if s.T.Failed() {
			raw, _ := os.ReadFile(log.Name())
			s.T.Logf("%s: %s", name, raw[max(0, len(raw)-2000):])
		}
	})
}

// targets serves the metrics of each cloudcore at /HOST. It returns its address.
func (s *system) targets() string {
	s.T.Helper()
	mux := http.NewServeMux()
	for _, replica := range options().Replicas() {
		mux.HandleFunc("/"+replica, func(w http.ResponseWriter, r *http.Request) {
			body, err := s.scrape(r.Context(), replica)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			_, _ = io.WriteString(w, body)
		})
	}
	server := httptest.NewServer(mux)
	s.T.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// kubeStateMetrics runs kube-state-metrics with our configuration and the permissions of our role,
// which is all that its account has. It returns its address.
func (s *system) kubeStateMetrics(dir, config, role string) string {
	s.T.Helper()
	paths, err := binary.Build(s.T.Context(), s.Root, "kube-state-metrics")
	s.Check(err)
	const account = "kube-state-metrics"
	s.Apply("default", role+"\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: trial-"+account+"}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \"skerry:kube-state-metrics\"}\n"+
		"subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "+account+"}]\n")
	s.T.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "delete", "clusterrolebinding/trial-"+account, "clusterrole/skerry:kube-state-metrics"))
	})
	access, err := clientcmd.LoadFromFile(s.Trial.Kubeconfig())
	s.Check(err)
	for _, user := range access.AuthInfos {
		user.Impersonate = account
	}
	kubeconfig := filepath.Join(dir, "objects.kubeconfig")
	s.Check(clientcmd.WriteToFile(*access, kubeconfig))
	port := func(address string) string { return address[strings.LastIndex(address, ":")+1:] }
	metrics, own := freePort(s), freePort(s)
	s.runProgram(dir, paths[0], "--kubeconfig="+kubeconfig, "--custom-resource-state-config-file="+config,
		"--resources=nodes", "--metric-labels-allowlist=nodes=[skerry.io/node-pool]",
		"--host=127.0.0.1", "--port="+port(metrics), "--telemetry-host=127.0.0.1", "--telemetry-port="+port(own))
	return metrics
}

// result is a series of an answer.
type result struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

func (m *monitoring) query(ctx context.Context, expr string) ([]result, error) {
	var answer struct {
		Status, Error string
		Data          struct{ Result []result }
	}
	if err := getJSON(ctx, m.prometheus+"/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, errors.New(answer.Error)
	}
	return answer.Data.Result, nil
}

func getJSON(ctx context.Context, at string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	return errors.Join(json.NewDecoder(res.Body).Decode(into), res.Body.Close())
}

// pages are the alerts that Alertmanager would send, and those that it inhibits: NAME node pool.
func (m *monitoring) pages(ctx context.Context) (sent, inhibited []string, err error) {
	var all []struct {
		Labels map[string]string
		Status struct{ State string }
	}
	if err := getJSON(ctx, m.alerts+"/api/v2/alerts", &all); err != nil {
		return nil, nil, err
	}
	for _, a := range all {
		name := strings.TrimSpace(fmt.Sprint(a.Labels["alertname"], " ", a.Labels["node"]))
		if a.Status.State == "suppressed" {
			inhibited = append(inhibited, name)
		} else {
			sent = append(sent, name)
		}
	}
	slices.Sort(sent)
	slices.Sort(inhibited)
	return sent, inhibited, nil
}

// ofLinks are the alerts that an outage may cause. Tests before may have left causes of others.
var ofLinks = regexp.MustCompile(`^Skerry(CloudcoreDown|SiteDown|ManyLinksDown|LinkDown|LinkFlapping|KubeletDown|BacklogOld)\b`)

// waitOnePage waits until one alert alone is sent of an outage, and others are inhibited.
func (m *monitoring) waitOnePage(alert string, others ...string) {
	m.s.T.Helper()
	m.s.WaitFor(alert+" alone to be sent", func(ctx context.Context) error {
		sent, inhibited, err := m.pages(ctx)
		sent = slices.DeleteFunc(sent, func(one string) bool { return !ofLinks.MatchString(one) })
		if err == nil && !(slices.Equal(sent, []string{alert}) && !slices.ContainsFunc(others, func(o string) bool { return !slices.Contains(inhibited, o) })) {
			err = fmt.Errorf("sent are %q, inhibited %q", sent, inhibited)
		}
		return err
	})
}

// waitPage waits until an alert is sent, or is not any more.
func (m *monitoring) waitPage(alert string, sent bool) {
	m.s.T.Helper()
	m.s.WaitFor(fmt.Sprintf("%s sent: %t", alert, sent), func(ctx context.Context) error {
		all, inhibited, err := m.pages(ctx)
		if err == nil && slices.Contains(all, alert) != sent {
			err = fmt.Errorf("sent are %q, inhibited %q", all, inhibited)
		}
		return err
	})
}

// unheld is a Service whose virtual IP no node can hold: its pool has none.
func (s *system) unheld() {
	s.T.Helper()
	s.Apply("default", "apiVersion: skerry.io/v1alpha1\nkind: NodePool\nmetadata: {name: nobody, labels: {site: nobody}}\n"+
		"spec: {addresses: [10.77.77.77], nodeSelector: {matchLabels: {nosuch: label}}}\n"+
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: unheld, annotations: {skerry.io/nodepool-labelselector: site=nobody}}\n"+
		"spec: {type: LoadBalancer, loadBalancerClass: skerry.io/vip, selector: {app: sample}, ports: [{port: 80, targetPort: 8080}]}\n")
	s.T.Cleanup(func() {
		ctx := context.Background()
		_, err := s.Run(ctx, "kubectl", "delete", "service/unheld", "-n", "default", "--ignore-not-found", "--wait=false")
		s.WaitForIn(ctx, "the virtual IP to go", func(ctx context.Context) error {
			out, err := s.Run(ctx, "kubectl", "get", "virtualips", "-o", "name")
			if err == nil && out != "" {
				err = errors.New(out + "is there")
			}
			return err
		})
		_, last := s.Run(ctx, "kubectl", "delete", "nodepool", "nobody", "--ignore-not-found")
		s.Check(errors.Join(err, last))
	})
}

// monitored are objects for alerts and dashboards: a virtual IP that no node can hold, a route, and
// an operation on a node that there is not.
func (s *system) monitored() {
	s.T.Helper()
	s.unheld()
	s.Apply("default", nodeOperation("monitored", "nosuch", "Reboot", ""))
	s.T.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "delete", "nodeoperation/monitored", "--ignore-not-found", "--wait=false"))
	})
	s.staticRoute("monitored", "{subnet: 172.21.0.0/16, gateway: "+lanRouter+", nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}}")
}

// What the alerts are for is done to a trial; a Prometheus and an Alertmanager with our rules send
// each, and send it no more when it is over. A site without a link is one page, and so is a cloud
// without cloudcore, and many links that are down at once.
func TestOperate_06_AlertsOfLinksAndObjectsFireAndClear(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	m := s.monitor()

	s.Cut("edge1")
	s.Cut("edge2")
	m.waitOnePage("SkerrySiteDown", "SkerryLinkDown edge1", "SkerryLinkDown edge2")
	s.Heal("edge1")
	m.waitPage("SkerrySiteDown", false)
	m.waitPage("SkerryLinkDown edge2", true)
	s.Heal("edge2")
	m.waitPage("SkerryLinkDown edge2", false)
	m.waitPage("SkerryLinkDown edge1", false)

	// Five causes at a time: they have no common alert.
	release := s.holdWrites("edge2")
	s.Apply(ns, "apiVersion: v1\nkind: Pod\nmetadata: {name: untold}\nspec:\n  nodeName: edge2\n  containers: [{name: c, image: \"nowhere.invalid/none:1\", imagePullPolicy: Never}]\n")
	s.monitored()
	s.staticRoute("unreached", "{subnet: 172.22.0.0/16, gateway: 10.99.99.99, nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}}")
	// The device refuses the field, and one refusal is above the threshold.
	s.Apply("default", "apiVersion: skerry.io/v1alpha1\nkind: NodeOperationSet\nmetadata: {name: refused}\nspec:\n"+
		"  template: {operation: Config, config: {patch: \"modules: {drain: {hooks: {reboot: /bin/true}}}\"}}\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}\n  failureThreshold: 0\n")
	t.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "delete", "nodeoperationset/refused", "--ignore-not-found", "--wait=false"))
	})
	causes := []string{"SkerryBacklogOld edge2", "SkerryVIPWithoutHolder", "SkerryOperationStuck nosuch", "SkerryRouteDegraded", "SkerryRolloutStalled"}
	for _, alert := range causes {
		m.waitPage(alert, true)
	}
	release()
	s.Kubectl("delete", "-n", "default", "service/unheld", "nodeoperation/monitored", "staticroute/unreached", "nodeoperationset/refused", "--wait=false")
	for _, alert := range causes {
		m.waitPage(alert, false)
	}

	restore := s.cloudcoreSetting("metrics", map[string]any{"nodes": 0})
	m.waitPage("SkerryCloudcoreAtBound", true)
	for _, replica := range options().Replicas() {
		s.Check(s.Trial.Stop(t.Context(), replica, "cloudcore"))
	}
	m.waitOnePage("SkerryCloudcoreDown", "SkerryLinkDown edge1", "SkerryLinkDown edge2")
	restore()
	m.waitPage("SkerryCloudcoreDown", false)
	m.waitPage("SkerryCloudcoreAtBound", false)
	m.waitPage("SkerryLinkDown edge1", false)
	m.waitPage("SkerryLinkDown edge2", false)

	const hollow = 12
	remove := s.addHollow(hollow)
	s.WaitFor("Prometheus to have seen the links", func(ctx context.Context) error {
		found, err := m.query(ctx, "skerry_node_link_info")
		if err == nil && len(found) < hollow+2 {
			err = fmt.Errorf("%d links", len(found))
		}
		return err
	})
	remove()
	m.waitOnePage("SkerryManyLinksDown")
	m.waitPage("SkerryManyLinksDown", false)
}

// noEvents is an admission policy.
const noEvents = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-events}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ${NAMESPACE}}}
    resourceRules: [{apiGroups: ["", events.k8s.io], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [events]}]
  validations: [{expression: "false"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-events}
spec: {policyName: no-events, validationActions: [Deny]}
`

// Faults of one device, by its own samples and heartbeats: each alert fires and clears.
func TestOperate_06_AlertsOfADeviceFireAndClear(t *testing.T) {
	s := newSystem(t)
	s.quickSamples("edge1")
	m := s.monitor()
	again := func() { s.Kill("edge1", "edgecore"); s.Start("edge1", "edgecore") }
	m.flap()

	// The certificate ends in six days. It is renewed at once when more of its life is over.
	ending := time.Now().Add(6 * 24 * time.Hour)
	s.Kill("edge2", "edgecore")
	s.certificateUntil("edge2", time.Now().Add(-time.Minute), ending)
	s.Start("edge2", "edgecore")

	// Without containerd the kubelet does not start.
	s.Check(s.Trial.Stop(t.Context(), "edge1", "containerd"))
	t.Cleanup(func() { _ = s.Trial.Start(context.Background(), "edge1", "containerd") }) // it runs, unless the test failed
	again()
	m.waitPage("SkerryKubeletDown edge1", true)
	s.Start("edge1", "containerd")
	m.waitPage("SkerryKubeletDown edge1", false)

	m.waitPage("SkerryCertificateEnding edge2", true)
	s.Kill("edge2", "edgecore")
	s.certificateUntil("edge2", ending.Add(-120*24*time.Hour), ending)
	s.Start("edge2", "edgecore")

	s.Kill("edge1", "edgecore")
	s.damageStore("edge1")
	s.Start("edge1", "edgecore")
	m.waitPage("SkerryStoreDamaged edge1", true)
	d, err := s.deviceStatus(t.Context(), "edge1")
	s.Check(err)
	again()
	m.waitPage("SkerryStoreDamaged edge1", false)
	s.Check(os.Remove(s.path("edge1", d.Data.DamagedStore)))

	m.waitPage("SkerryCertificateEnding edge2", false)

	w := s.wrongClock(time.Now().Add(time.Hour))
	s.Kill("edge1", "edgecore")
	stop := w.start("edge1")
	m.waitPage("SkerryClockOff edge1", true)
	stop()
	s.Start("edge1", "edgecore")
	m.waitPage("SkerryClockOff edge1", false)

	s.smallDisk("edge1", 16)
	s.fill("edge1")
	m.waitPage("SkerryDiskAlmostFull edge1", true)
	s.onHost("edge1", "rm", dataDir+"/fill")
	m.waitPage("SkerryDiskAlmostFull edge1", false)

	s.reportEvents("edge1", true)
	ns := s.Namespace()
	m.dropEvents(ns)
	m.waitPage("SkerryReportsDropped edge1", true)
	m.waitPage("SkerryReportsDropped edge1", false)
	s.Apply(ns, noEvents)
	t.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "delete", "validatingadmissionpolicybinding/no-events", "validatingadmissionpolicy/no-events"))
	})
	f, device, i := s.flood(s.pod(ns, "untold", "edge1")), s.device("edge1"), 0
	s.WaitFor("an event to be refused for good", func(ctx context.Context) error {
		i++
		if _, err := device.CoreV1().Events(ns).Create(ctx, f.event(i, metav1.Now()), metav1.CreateOptions{}); err != nil {
			return err
		}
		d, err := s.deviceStatus(ctx, "edge1")
		if err == nil && d.Data.Outbox.Refused == 0 {
			err = errors.New("no write was refused")
		}
		return err
	})
	m.waitPage("SkerryReportsDropped edge1", true)
	m.waitPage("SkerryReportsDropped edge1", false)
	m.waitPage("SkerryLinkFlapping edge2", false)
	s.WaitReady("edge1", true)
}

// flap has a firewall reset the connections of edge2 each time that its link has worked for some
// seconds, until the alert is sent.
func (m *monitoring) flap() {
	const node = "edge2"
	s := m.s
	s.T.Helper()
	reset := func(ctx context.Context, verb string) {
		for _, way := range []string{"-i", "-o"} {
			s.onHostIn(ctx, "router", "iptables", verb, "FORWARD", way, "up2", "-p", "tcp", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "REJECT", "--reject-with", "tcp-reset")
		}
	}
	s.set(node, "modules.edgeHub.transport=websocket", "modules.edgeHub.transport=auto")
	for resets := 0; ; resets++ {
		s.waitLinked(node)
		s.WaitFor("heartbeats of the link", func(ctx context.Context) error {
			d, err := s.deviceStatus(ctx, node)
			if err == nil && d.Link.LastContact.Sub(d.Link.Since) < 3*time.Second {
				err = errors.New("it has just come up")
			}
			return err
		})
		sent, _, err := m.pages(s.T.Context())
		s.Check(err)
		if slices.Contains(sent, "SkerryLinkFlapping "+node) {
			s.T.Logf("sent after %d resets", resets)
			return
		}
		if resets > 12 {
			s.T.Fatalf("SkerryLinkFlapping is not sent after %d resets, but %q", resets, sent)
		}
		reset(s.T.Context(), "-I")
		s.waitUnlinked(node)
		reset(s.T.Context(), "-D")
	}
}

// dropEvents has more events on edge1 during a cut than have room.
func (m *monitoring) dropEvents(ns string) {
	s := m.s
	s.T.Helper()
	s.set("edge1", "modules.metaManager.eventLimit.entries=100", "modules.metaManager.eventLimit.entries=10000")
	f := s.flood(s.pod(ns, "island", "edge1"))
	s.waitDelivered("edge1")
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	s.Check(f.write(s.T.Context(), 150))
	d, err := s.deviceStatus(s.T.Context(), "edge1")
	s.Check(err)
	if d.Data.Outbox.Dropped < 50 {
		s.T.Errorf("%d events were dropped of 150, want 50 at least", d.Data.Outbox.Dropped)
	}
	s.Heal("edge1")
	s.waitDelivered("edge1")
}

// certificateUntil gives a device, whose edgecore must not run, a certificate of the cluster's CA
// with other times for the same key.
func (s *system) certificateUntil(node string, from, until time.Time) {
	s.T.Helper()
	const authority = "/var/lib/kubeplane/pki/ca"
	var read [3][]byte
	file := s.path(node, dataDir+"/identity/node.pem")
	for i, path := range []string{s.path(trial.Cloud, authority+".crt"), s.path(trial.Cloud, authority+".key"), file} {
		var err error
		read[i], err = os.ReadFile(path)
		s.Check(err)
	}
	ca, err := pki.ParseAuthority(read[0], read[1])
	s.Check(err)
	block, key := pem.Decode(read[2])
	have, err := x509.ParseCertificate(block.Bytes)
	s.Check(err)
	cert, err := ca.Issue(&x509.Certificate{
		Subject: have.Subject, NotBefore: from, NotAfter: until, KeyUsage: have.KeyUsage, ExtKeyUsage: have.ExtKeyUsage, BasicConstraintsValid: true,
	}, have.PublicKey)
	s.Check(err)
	s.Check(os.WriteFile(file, append(pki.EncodeCertificates(cert), key...), 0o600))
}

// cloudcore may not read a resource any more: no change of it reaches a device. And a worker of it
// panics, whose code is damaged in memory: no input is known that has a program panic.
func TestOperate_06_AlertsOfCloudcoreFireAndClear(t *testing.T) {
	s := newSystem(t)
	s.quickSamples("edge1")
	m := s.monitor()
	s.panicOnce()
	m.waitPage("SkerryRecoveredPanic", true)
	roles := s.Client.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "skerry:cloudcore-data", metav1.GetOptions{})
	s.Check(err)
	allow := func(rules []rbacv1.PolicyRule) {
		ctx := context.Background() // also after the test
		now, err := roles.Get(ctx, role.Name, metav1.GetOptions{})
		s.Check(err)
		now.Rules = rules
		_, err = roles.Update(ctx, now, metav1.UpdateOptions{})
		s.Check(err)
	}
	t.Cleanup(func() { allow(role.Rules) })
	without := role.DeepCopy().Rules
	for i := range without {
		if slices.Contains(without[i].Resources, rbacv1.ResourceAll) { // all of ours, but servicecollections
			without[i].Resources = []string{"clusterinfos", "edgeapps", "nodeoperations", "nodeoperationsets", "nodepools", "staticroutes", "virtualips"}
		}
	}
	allow(without)
	s.Check(s.Trial.Stop(t.Context(), trial.Cloud, "kubeplane")) // or open watches would last for minutes
	s.Start(trial.Cloud, "kubeplane")
	m.waitPage("SkerryCollectionFailing", true)
	allow(role.Rules)
	m.waitPage("SkerryCollectionFailing", false)
	m.waitPage("SkerryRecoveredPanic", false)
	s.WaitReady("edge1", true)
}

// cloudcoreSetting changes a part of cloudcore.yaml of each replica, which is started again, until
// it is restored or the test ends.
func (s *system) cloudcoreSetting(part string, value any) (restore func()) {
	s.T.Helper()
	const file = "/etc/skerry/cloudcore.yaml"
	restart := func(ctx context.Context, replica string, content []byte) {
		if err := os.WriteFile(s.path(replica, file), content, 0o600); err != nil {
			s.T.Error(err)
		}
		_ = s.Trial.Stop(ctx, replica, "cloudcore") // the test may have stopped it
		if err := s.Trial.Start(ctx, replica, "cloudcore"); err != nil {
			s.T.Error(err)
		}
	}
	was := map[string][]byte{}
	restore = func() {
		for replica, before := range was {
			restart(context.Background(), replica, before)
		}
		clear(was)
	}
	s.T.Cleanup(restore)
	for _, replica := range options().Replicas() {
		before, err := os.ReadFile(s.path(replica, file))
		s.Check(err)
		var config map[string]any
		s.Check(yaml.Unmarshal(before, &config))
		config[part] = value
		after, err := yaml.Marshal(config)
		s.Check(err)
		was[replica] = before
		restart(s.T.Context(), replica, after)
	}
	return restore
}

// scrape reads the metrics of a replica of cloudcore.
func (s *system) scrape(ctx context.Context, replica string) (string, error) {
	h, err := s.Trial.Host(replica)
	s.Check(err)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10003/metrics", nil)
	s.Check(err)
	res, err := (&http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(res.Body)
	return string(body), errors.Join(err, res.Body.Close())
}
