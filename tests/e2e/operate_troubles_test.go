package e2e_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// trouble is something that is wrong, and the one command that is to show it and name the remedy.
type trouble struct {
	name  string
	cause func(s *system) (cure func())
	ask   func(ctx context.Context, s *system) string
	// shows matches the problem in the output, mends its remedy.
	shows, mends string
}

// troubles are ten that a person had put into a trial by hand. The cures leave it as it was.
func troubles(token string, expiry time.Time) []trouble {
	kubectl := func(args ...string) func(context.Context, *system) string {
		return func(ctx context.Context, s *system) string {
			out, err := s.Run(ctx, append([]string{"kubectl"}, args...)...)
			if err != nil {
				out += err.Error()
			}
			if slices.Contains(args, "yaml") { // which folds long lines
				out = strings.Join(strings.Fields(out), " ")
			}
			return out
		}
	}
	status := func(_ context.Context, s *system) string {
		out, _, errs := s.edgecore("edge1", "status")
		return out + errs
	}
	both := func(s *system, do func(replica string)) {
		for _, replica := range options().Replicas() {
			do(replica)
		}
	}
	return []trouble{
		{"bad image", func(s *system) func() {
			ns := s.Namespace()
			s.Apply(ns, "apiVersion: v1\nkind: Pod\nmetadata: {name: untold}\nspec:\n  nodeName: edge1\n  containers: [{name: c, image: \"nowhere.invalid/none:1\", imagePullPolicy: Never}]\n")
			return func() { s.Kubectl("delete", "pod", "-n", ns, "untold", "--grace-period=1") }
		}, kubectl("skerry", "node", "edge1"), `untold: waiting, ErrImageNeverPull`, `-> .*image`},
		{"disk pressure", func(s *system) func() {
			fill, free := s.shortOfDisk("edge1")
			fill()
			return free
		}, kubectl("skerry", "status"), `(?m)^edge1 .* DiskPressure`, `(?m)^-> DiskPressure \(edge1\): free disk space`},
		{"route that would cut the device off", func(s *system) func() {
			s.staticRoute("wrong", "{subnet: 198.51.100.0/24, gateway: "+lanRouter+", nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}}")
			return func() { s.Kubectl("delete", "staticroute", "wrong") }
		}, kubectl("get", "staticroute", "wrong", "-o", "yaml"), `reason: Protected`, `overlaps 198\.51\.100\.\S+, .*: a route for it could cut this node off; choose subnets that leave it out`},
		{"virtual IP of a pool without nodes", func(s *system) func() {
			s.unheld()
			return func() { s.Kubectl("delete", "service", "-n", "default", "unheld") }
		}, kubectl("get", "virtualips", "-o", "yaml"), `reason: NoNodes`, `kubectl label node NODE skerry.io/node-pool=nobody`},
		{"containerd is dead", func(s *system) func() {
			s.Check(s.Trial.Stop(s.T.Context(), "edge1", "containerd"))
			return func() { s.Start("edge1", "containerd"); s.WaitReady("edge1", true) }
		}, kubectl("skerry", "node", "edge1"), `PROBLEM .*(containerd|runtime)`, `systemctl restart containerd`},
		{"wrong configuration", func(s *system) func() {
			s.Check(os.WriteFile(s.path("edge1", "/run/wrong.yaml"), []byte("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\nmodules:\n  edgeHub:\n    keepalive: \"10\"\n"), 0o600))
			return func() { s.onHost("edge1", "rm", "/run/wrong.yaml") }
		}, func(_ context.Context, s *system) string {
			_, _, errs := s.edgecore("edge1", "config", "validate", "/run/wrong.yaml")
			return errs
		}, `wrong.yaml:5: modules.edgeHub.keepalive`, `want a duration with a unit, like 10s`},
		{"the cloud's name does not resolve", func(s *system) func() {
			s.Check(s.Trial.Set(s.T.Context(), "edge1", []string{"modules.edgeHub.servers=[cloud.invalid]"}))
			return func() {
				s.Check(s.Trial.Set(s.T.Context(), "edge1", []string{"modules.edgeHub.servers=[198.51.100.10]"}))
				s.waitLinked("edge1")
			}
		}, status, `(?m)^link .*cloud.invalid.*$`, `(?m)^PROBLEM .*resolv`},
		{"cloudcore is down", func(s *system) func() {
			both(s, func(replica string) { s.Check(s.Trial.Stop(s.T.Context(), replica, "cloudcore")) })
			return func() {
				both(s, func(replica string) { s.Start(replica, "cloudcore") })
				s.waitLinked("edge1")
				s.waitLinked("edge2")
			}
		}, kubectl("skerry", "status"), `(?m)^edge\d +Down .*link down`, `(?m)^-> LinkDown \(edge\d.*\): no device is known to be in contact: is cloudcore running.*skerry-system`},
		{"kube-apiserver is down", func(s *system) func() {
			s.Check(s.Trial.Stop(s.T.Context(), "cloud", "kubeplane"))
			return func() { s.Start("cloud", "kubeplane"); s.WaitReady("edge1", true) }
		}, kubectl("skerry", "status"), `connection refused`, `kube-apiserver does not answer: is it running`},
		{"expired token", func(s *system) func() {
			s.WaitFor("the token to expire", func(context.Context) error {
				if left := time.Until(expiry); left > 0 {
					return fmt.Errorf("it is valid for another %v", left)
				}
				return nil
			})
			s.Check(os.WriteFile(s.path("edge1", "/run/late-token"), []byte(token+"\n"), 0o600))
			s.Check(os.WriteFile(s.path("edge1", "/run/late.yaml"), []byte("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\ndataDir: /run/late\n"), 0o600))
			return func() { s.onHost("edge1", "rm", "-rf", "/run/late", "/run/late.yaml", "/run/late-token") }
		}, func(_ context.Context, s *system) string {
			_, _, errs := s.edgecore("edge1", "join", "--config", "/run/late.yaml", "--token-file", "/run/late-token", "--node-name", "late", "198.51.100.10")
			return errs
		}, `(?i)expired`, `cloudcore token create`},
	}
}

// Ten troubles, each asked for by one command: 3 points where it shows the problem and names the
// remedy, 1 where it shows the problem. At least 27 of 30.
func TestOperate_17_TenTroublesAreShownWithTheirRemedies(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	token, expiry := s.cloudcore("token", "create", "--ttl", "1m"), time.Now().Add(time.Minute+time.Second)
	score, most := 0, 0
	for _, c := range troubles(token, expiry) {
		t.Run(c.name, func(t *testing.T) {
			points := s.tryTrouble(c)
			score, most = score+points, most+3
			t.Logf("%d points", points)
		})
	}
	if score < most-3 {
		t.Errorf("%d of %d points", score, most)
	}
	t.Logf("%d of %d points", score, most)
}

// tryTrouble causes a trouble, asks until the answer has all, and cures it.
func (s *system) tryTrouble(c trouble) (points int) {
	cure := c.cause(s)
	defer cure()
	shows, mends := regexp.MustCompile(c.shows), regexp.MustCompile(c.mends)
	last := ""
	err := within(s.T.Context(), 90*time.Second, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		start := time.Now()
		got := c.ask(ctx, s)
		if ctx.Err() != nil {
			return fmt.Errorf("no answer after %v", time.Since(start))
		}
		last, points = got, 0
		if shows.MatchString(got) {
			points = 1
			if mends.MatchString(got) {
				points = 3
				return nil
			}
		}
		return fmt.Errorf("%d points", points)
	})
	if err != nil {
		s.T.Logf("%s: %v; the last answer:\n%s", c.name, err, last[:min(len(last), 4000)])
	}
	return points
}

// within asks until there is no error, or the time is over.
func within(ctx context.Context, long time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}
