package metrics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// alertmanager is one that runs with manifests/monitoring/inhibit.yaml.
type alertmanager struct{ url string }

func startAlertmanager(t *testing.T) alertmanager {
	t.Helper()
	inhibit, err := os.ReadFile(filepath.Join("..", "..", "manifests", "monitoring", "inhibit.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "alertmanager.yml")
	if err := os.WriteFile(file, append([]byte("route: {receiver: none, group_wait: 0s}\nreceivers: [{name: none}]\n"), inhibit...), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close() // the program is given the port
	var log bytes.Buffer
	c := exec.CommandContext(context.WithoutCancel(t.Context()), "prometheus-alertmanager", "--config.file="+file, "--storage.path="+dir, "--web.listen-address="+at, "--cluster.listen-address=")
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatalf("%v (make deps installs it)", err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	a := alertmanager{"http://" + at}
	poll.True(t, "Alertmanager answers", func() bool { return a.ask(t, http.MethodGet, "/-/ready", nil, nil) == nil })
	return a
}

func (a alertmanager) ask(t *testing.T, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(t.Context(), method, a.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s", method, path, res.Status)
	} else if out != nil {
		err = json.NewDecoder(res.Body).Decode(out)
	}
	return errors.Join(err, res.Body.Close())
}

// waitPages waits until Alertmanager sends these alone of the alerts that fire. It may show an
// alert as sent for a moment before it knows the one that inhibits it.
func (a alertmanager) waitPages(t *testing.T, firing []map[string]string, want ...string) {
	t.Helper()
	type alert struct {
		Labels   map[string]string `json:"labels"`
		StartsAt time.Time         `json:"startsAt"`
		EndsAt   time.Time         `json:"endsAt"`
		Status   struct {
			State string `json:"state"`
		} `json:"status"`
	}
	var in, out []alert
	for _, labels := range firing {
		in = append(in, alert{Labels: labels, StartsAt: time.Now(), EndsAt: time.Now().Add(time.Hour)})
	}
	if err := a.ask(t, http.MethodPost, "/api/v2/alerts", in, nil); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, fmt.Sprintf("%q alone to be sent", want), func(context.Context) error {
		var sent []string
		out = nil
		if err := a.ask(t, http.MethodGet, "/api/v2/alerts", nil, &out); err != nil {
			return err
		}
		for _, one := range out {
			switch one.Status.State {
			case "active":
				sent = append(sent, one.Labels["alertname"]+" "+one.Labels["node"]+one.Labels["pool"])
			case "unprocessed":
				return fmt.Errorf("%v has no state", one.Labels)
			}
		}
		slices.Sort(sent)
		if len(out) != len(firing) || !slices.Equal(sent, want) {
			return fmt.Errorf("of %d alerts are sent: %q", len(out), sent)
		}
		return nil
	})
}

// A site without a link, and a cloud without cloudcore, is one page, whatever its devices lack.
func TestOperate_06_ASiteWithoutALinkIsOnePage(t *testing.T) {
	site := []map[string]string{
		{"alertname": "SkerrySiteDown", "severity": "critical", "pool": "plant"},
		{"alertname": "SkerryLinkDown", "node": "a", "pool": "plant"},
		{"alertname": "SkerryLinkDown", "node": "b", "pool": "plant"},
		{"alertname": "SkerryLinkFlapping", "node": "b"}, // inhibited by b's link
		{"alertname": "SkerryOperationStuck", "node": "a"},
		{"alertname": "SkerryVIPWithoutHolder", "virtualip": "v", "pool": "plant"},
	}
	elsewhere := map[string]string{"alertname": "SkerryLinkDown", "node": "c", "pool": "ship"}
	startAlertmanager(t).waitPages(t, append(site, elsewhere), "SkerryLinkDown cship", "SkerrySiteDown plant")
	all := append(site, elsewhere, map[string]string{"alertname": "SkerryCloudcoreDown", "severity": "critical"}, map[string]string{"alertname": "SkerryManyLinksDown"})
	startAlertmanager(t).waitPages(t, all, "SkerryCloudcoreDown ")
}

// The queries of the dashboards parse, and use documented metrics.
func TestDashboards(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for _, name := range []string{"dashboard-fleet.json", "dashboard-device.json"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "manifests", "monitoring", name))
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(raw, &d); err != nil || len(d.Panels) < 10 {
			t.Errorf("%s has %d panels: %v", name, len(d.Panels), err)
		}
		for _, p := range d.Panels {
			if len(p.Targets) == 0 {
				t.Errorf("%s: %s has no query", name, p.Title)
			}
			for _, q := range p.Targets {
				rules = append(rules, rule{fmt.Sprintf("query:%d", len(rules)), q.Expr})
				for _, metric := range metricName().FindAllString(q.Expr, -1) {
					if !bytes.Contains(page, []byte("| `"+metric+"` |")) {
						t.Errorf("%s: %s: there is no metric %s", name, p.Title, metric)
					}
				}
			}
		}
	}
	raw, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboards", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "queries.yaml"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "rules", "queries.yaml")
}
