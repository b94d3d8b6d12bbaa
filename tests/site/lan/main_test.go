// Package lan_test runs against one whole trial of a site: three edges in one NodePool that
// discover each other on their LAN, with a pod network, ClusterIPs and names of their own.
package lan_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

func TestMain(m *testing.M) {
	os.Exit(tests().Main(m))
}

func tests() suite.Suite {
	return suite.Suite{Name: "site-lan", Options: options()}
}

// options are the trial's. Lost nodes are noticed quickly, so that the cloud evicts while
// a test looks.
func options() trial.Options {
	o := trial.DefaultOptions()
	o.Edges, o.Quick, o.Sample = 3, true, false
	o.Set = []string{
		"modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s", // how soon a silent link is given up
	}
	return o
}

// A system is the trial as a test uses it.
type system struct {
	*suite.System
}

func newSystem(t *testing.T) *system {
	t.Helper()
	return &system{tests().Use(t)}
}

// label puts a node into a pool, as an administrator does; "" takes it out of all.
func (s *system) label(node, pool string) {
	s.T.Helper()
	value := fmt.Sprintf("%q", pool)
	if pool == "" {
		value = "null"
	}
	s.patch("/api/v1/nodes/"+node, `{"metadata":{"labels":{"skerry.io/node-pool":`+value+`}}}`)
}

func (s *system) patch(path, body string) {
	s.T.Helper()
	s.Check(s.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path).Body([]byte(body)).Do(s.T.Context()).Error())
}

const pools = "/apis/skerry.io/v1alpha1/nodepools"

// pool makes a NodePool, which goes with the test.
func (s *system) pool(name, spec string) {
	s.T.Helper()
	body := fmt.Sprintf(`{"apiVersion":"skerry.io/v1alpha1","kind":"NodePool","metadata":{"name":%q},"spec":%s}`, name, spec)
	s.Check(s.Client.CoreV1().RESTClient().Post().AbsPath(pools).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(s.T.Context()).Error())
	s.T.Cleanup(func() {
		if err := s.Client.CoreV1().RESTClient().Delete().AbsPath(pools + "/" + name).Do(context.Background()).Error(); err != nil {
			s.T.Error(err)
		}
	})
}

// ready makes a pod ready or not, by its own probe.
func (s *system) ready(p corev1.Pod, ready bool) {
	s.T.Helper()
	path := "/fail"
	if ready {
		path = "/heal"
	}
	s.in(p, "curl -sf -m 5 -X POST http://"+p.Status.PodIP+":8080"+path)
}
