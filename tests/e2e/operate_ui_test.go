package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/browser"
)

// ui runs `kubectl skerry ui` as a user until the test ends, and returns the address that it
// prints.
func (s *system) ui(user string) string {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.T.Context())
	c := exec.CommandContext(ctx, filepath.Join(s.Root, "bin", "trial"), "kubectl", "skerry", "--as", user, "ui")
	c.Dir, c.Env, c.Stderr = s.Root, append(os.Environ(), "TRIAL_DIR="+s.Dir), s.T.Output()
	out, err := c.StdoutPipe()
	s.Check(err)
	s.Check(c.Start())
	s.T.Cleanup(func() {
		cancel()
		_ = c.Wait() // it was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	s.Check(err)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return strings.TrimSpace(line)
}

// shownDown waits for the page to show that a device is down, and returns how long after the Lease
// had run out that was.
func (s *system) shownDown(p *browser.Page, node string) time.Duration {
	s.T.Helper()
	row := fmt.Sprintf(`document.querySelector('[data-key="%s"] [data-state=Down]')`, node)
	p.Wait(row, time.Minute+30*time.Second)
	var at float64
	p.Eval(`Date.now()`, &at)
	lease, err := s.Client.CoordinationV1().Leases("kube-node-lease").Get(s.T.Context(), node, metav1.GetOptions{})
	s.Check(err)
	known := lease.Spec.RenewTime.Truncate(time.Second).Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
	return time.UnixMilli(int64(at)).Sub(known)
}

// The page in Chromium, as a viewer: a cut shows within two seconds after the cluster knows, a heal
// without a reload; a device's timeline has the cluster's side and the device's own recorder; a
// right that is missing is named, and nothing can be changed through it.
func TestOperate_08_PageShowsCutAndHeal(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	s.staticRoute("ui", "{subnet: 192.0.2.0/24, gateway: 192.0.2.1}")
	s.unheld()
	address := s.ui(s.bindUser("skerry:viewer"))
	p := browser.Open(t, address, 1180, 640)
	p.Wait(`document.querySelectorAll('#devices tbody [data-state=Up]').length === 2`, time.Minute)
	p.Wait(`document.querySelector('#routes').innerText.includes('192.0.2.0/24')`, time.Minute)
	p.Wait(`document.querySelector('#vips').innerText.includes('10.77.77.77')`, time.Minute)
	var href string
	p.Eval(`location.href`, &href)
	if strings.Contains(href, "token") {
		t.Errorf("the token stays in the address bar: %s", href)
	}

	s.Cut("edge1")
	took := s.shownDown(p, "edge1")
	if took > 2*time.Second { // a machine that is loaded: once more
		t.Logf("the cut was shown after %v", took)
		s.Heal("edge1")
		p.Wait(`document.querySelector('[data-key=edge1] [data-state=Up]')`, time.Minute)
		s.Cut("edge1")
		took = s.shownDown(p, "edge1")
	}
	if t.Logf("the cut was shown %v after the Lease had run out", took); took > 2*time.Second {
		t.Errorf("the cut was shown %v after the cluster knew", took)
	}
	p.Wait(`document.querySelector('[data-key=edge1]').innerText.includes('link down')`, time.Minute)
	p.Press("ArrowDown", "Enter") // those with problems are first
	p.Wait(`document.querySelector('#timeline').innerText.includes('LastContact')`, time.Minute)
	p.Wait(`document.querySelector('#recorder').innerText.includes('could not be asked')`, time.Minute)
	p.Wait(`document.querySelector('#remedies').innerText.includes('edgecore status')`, time.Minute)
	p.Press("Escape")
	if shot := os.Getenv("UPDATE"); shot != "" {
		p.Screenshot(filepath.Join(s.Root, "docs", "fleet.png"))
	}

	s.Heal("edge1")
	p.Wait(`document.querySelector('[data-key=edge1] [data-state=Up]')`, time.Minute)
	p.Eval(`location.hash = '#/device/edge1'`, nil)
	p.Wait(`[...document.querySelectorAll('#timeline tbody tr')].some(tr => tr.innerText.includes('Link') && tr.innerText.includes('device'))`, time.Minute)
	for _, c := range p.Complaints {
		if !strings.Contains(c, "status of 502") { // the device that was cut could not be asked
			t.Errorf("the page complains: %s", c)
		}
	}
	s.pageRefuses(address)

	less, err := s.Client.RbacV1().ClusterRoles().Create(t.Context(), s.withoutRoutes(), metav1.CreateOptions{})
	s.Check(err)
	t.Cleanup(func() {
		_ = s.Client.RbacV1().ClusterRoles().Delete(context.WithoutCancel(t.Context()), less.Name, metav1.DeleteOptions{})
	})
	p = browser.Open(t, s.ui(s.bindUser(less.Name)), 1180, 640)
	p.Wait(`document.querySelectorAll('#devices tbody [data-state=Up]').length === 2`, time.Minute)
	p.Wait(`document.querySelector('#notes').innerText.includes('resource "staticroutes"')`, time.Minute)
}

// withoutRoutes is the viewer's role without one right.
func (s *system) withoutRoutes() *rbacv1.ClusterRole {
	s.T.Helper()
	viewer, err := s.Client.RbacV1().ClusterRoles().Get(s.T.Context(), "skerry:viewer", metav1.GetOptions{})
	s.Check(err)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "less-staticroutes-ui"}}
	for _, r := range viewer.Rules {
		var left []string
		for _, resource := range r.Resources {
			if resource != "staticroutes" {
				left = append(left, resource)
			}
		}
		r.Resources = left
		role.Rules = append(role.Rules, r)
	}
	return role
}

// pageRefuses asks the page for what it must not give: data without its token, and a change.
func (s *system) pageRefuses(address string) {
	s.T.Helper()
	u, err := url.Parse(address)
	s.Check(err)
	token := strings.TrimPrefix(u.Fragment, "token=")
	for _, tc := range []struct {
		method, path, token string
		want                int
	}{
		{http.MethodGet, "/api/fleet", token, 200}, {http.MethodGet, "/api/fleet", "", 401}, {http.MethodGet, "/api/device/edge1", "x", 401},
		{http.MethodDelete, "/api/device/edge1", token, 405}, {http.MethodGet, "/api/v1/namespaces/kube-system/secrets", token, 404},
	} {
		r, err := http.NewRequestWithContext(s.T.Context(), tc.method, "http://"+u.Host+tc.path, http.NoBody)
		s.Check(err)
		r.Header.Set("Authorization", "Bearer "+tc.token)
		res, err := http.DefaultClient.Do(r)
		s.Check(err)
		res.Body.Close()
		if res.StatusCode != tc.want {
			s.T.Errorf("%s %s: %s, want %d", tc.method, tc.path, res.Status, tc.want)
		}
	}
}
