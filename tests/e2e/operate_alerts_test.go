package e2e_test

import (
	"context"
	"encoding/json"
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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
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
	rules = strings.NewReplacer("[1d]", "[30m]", "[1h:1m]", "[20s:1s]", "> 600", "> 10", "> 7200", "> 10", "> 120)", "> 2)").Replace(rules)
	rules = regexp.MustCompile(`\[(\d+)m\]`).ReplaceAllStringFunc(rules, func(m string) string {
		if m == "[30m]" {
			return m
		}
		return strings.TrimSuffix(m, "m]") + "s]"
	})
	rules = regexp.MustCompile(`for: (\d+)m`).ReplaceAllString(rules, "for: ${1}s")
	return strings.ReplaceAll(rules, "for: 1h", "for: 60s")
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

	targets := s.targets(read("kube-state-metrics.yaml"))
	prometheus, alertmanager := freePort(s), freePort(s)
	var scrapes strings.Builder
	for _, name := range append(options().Replicas(), "objects") {
		fmt.Fprintf(&scrapes, "- {job_name: %s, metrics_path: /%s, static_configs: [{targets: [%q]}]}\n", name, name, targets)
	}
	write("prometheus.yml", fmt.Sprintf("global: {scrape_interval: 2s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nalerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}\nscrape_configs:\n%s",
		alertmanager, scrapes.String()))
	inhibit := write("alertmanager.yml", "route: {receiver: none, group_wait: 0s, group_interval: 1s}\nreceivers: [{name: none}]\n"+read("inhibit.yaml"))
	s.runProgram(dir, "prometheus-alertmanager", "--config.file="+inhibit, "--storage.path="+filepath.Join(dir, "am"), "--web.listen-address="+alertmanager, "--cluster.listen-address=")
	s.runProgram(dir, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+prometheus)
	m := &monitoring{s, "http://" + prometheus, "http://" + alertmanager}
	s.WaitFor("Prometheus to have scraped", func(ctx context.Context) error {
		found, err := m.query(ctx, "skerry_node_link_info and on () skerry_node_pool_info")
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
	log, err := os.Create(filepath.Join(dir, name+".log"))
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

// targets serves the metrics of each cloudcore at /HOST, and of the cluster's objects at /objects.
// It returns its address.
func (s *system) targets(config string) string {
	s.T.Helper()
	admin, err := s.Trial.Admin()
	s.Check(err)
	objects := &objectMetrics{}
	s.Check(yaml.Unmarshal([]byte(config), &objects.config))
	objects.client, err = dynamic.NewForConfig(admin)
	s.Check(err)
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
	mux.Handle("/objects", objects)
	server := httptest.NewServer(mux)
	s.T.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// objectMetrics does what kube-state-metrics does with its configuration of custom resources, as
// far as ours goes: it stands for that program, of which no module can be built here.
type objectMetrics struct {
	client dynamic.Interface
	config struct {
		Spec struct {
			Resources []struct {
				GroupVersionKind schema.GroupVersionKind
				MetricNamePrefix string
				LabelsFromPath   map[string][]string
				Metrics          []struct {
					Name string
					Each struct {
						Type  string
						Info  struct{ LabelsFromPath map[string][]string }
						Gauge struct {
							Path, ValueFrom []string
							LabelsFromPath  map[string][]string
							NilIsZero       bool
						}
					}
				}
			}
		}
	}
}

func (o *objectMetrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, resource := range o.config.Spec.Resources {
		gvk := resource.GroupVersionKind
		list, err := o.client.Resource(gvk.GroupVersion().WithResource(strings.ToLower(gvk.Kind)+"s")).List(r.Context(), metav1.ListOptions{})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		for _, m := range resource.Metrics {
			for i := range list.Items {
				item := list.Items[i].Object
				labels := labelled(item, resource.LabelsFromPath)
				print := func(more []string, value float64) {
					fmt.Fprintf(w, "%s_%s{%s} %g\n", resource.MetricNamePrefix, m.Name, strings.Join(slices.Concat(labels, more), ","), value)
				}
				if m.Each.Type == "Info" {
					print(labelled(item, m.Each.Info.LabelsFromPath), 1)
					continue
				}
				g := m.Each.Gauge
				found, _, _ := unstructured.NestedFieldNoCopy(item, g.Path...)
				if parts, is := found.([]any); is {
					for _, part := range parts {
						fields := part.(map[string]any)
						value, _, _ := unstructured.NestedFieldNoCopy(fields, g.ValueFrom...)
						if v, ok := numberOf(value, g.NilIsZero); ok {
							print(labelled(fields, g.LabelsFromPath), v)
						}
					}
				} else if v, ok := numberOf(found, g.NilIsZero); ok {
					print(labelled(item, g.LabelsFromPath), v)
				}
			}
		}
	}
}

// labelled are labels; one whose path leads nowhere is left out.
func labelled(item map[string]any, paths map[string][]string) (labels []string) {
	for name, path := range paths {
		if v, ok, _ := unstructured.NestedFieldNoCopy(item, path...); ok {
			labels = append(labels, fmt.Sprintf("%s=%q", name, fmt.Sprint(v)))
		}
	}
	slices.Sort(labels)
	return labels
}

func numberOf(v any, nilIsZero bool) (float64, bool) {
	switch v := v.(type) {
	case nil:
		return 0, nilIsZero
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case string:
		if at, err := time.Parse(time.RFC3339, v); err == nil {
			return float64(at.Unix()), true
		}
		return map[string]float64{"True": 1}[v], v == "True" || v == "False" || v == "Unknown"
	}
	return 0, false
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
func TestOperate_06_AlertsFireAndClear(t *testing.T) {
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

	// Four causes at a time: they have no common alert.
	release := s.holdWrites("edge2")
	s.Apply(ns, "apiVersion: v1\nkind: Pod\nmetadata: {name: untold}\nspec:\n  nodeName: edge2\n  containers: [{name: c, image: \"nowhere.invalid/none:1\", imagePullPolicy: Never}]\n")
	s.monitored()
	s.staticRoute("unreached", "{subnet: 172.22.0.0/16, gateway: 10.99.99.99, nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}}")
	causes := []string{"SkerryBacklogOld edge2", "SkerryVIPWithoutHolder", "SkerryOperationStuck nosuch", "SkerryRouteDegraded"}
	for _, alert := range causes {
		m.waitPage(alert, true)
	}
	release()
	s.Kubectl("delete", "-n", "default", "service/unheld", "nodeoperation/monitored", "staticroute/unreached", "--wait=false")
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
