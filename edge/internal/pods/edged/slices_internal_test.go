package edged

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The kubelet's deletion of ResourceSlices spares those of running drivers.
func TestKeeping(t *testing.T) {
	for name, c := range map[string]struct {
		selector string
		drivers  []string
		want     []string // expected API requests; empty: no request
	}{
		"all, and none runs":     {"spec.nodeName=edge1", nil, []string{"spec.nodeName=edge1"}},
		"all, and two run":       {"spec.nodeName=edge1", []string{"a", "b"}, []string{"spec.driver!=a,spec.driver!=b,spec.nodeName=edge1"}},
		"one that is gone":       {"spec.driver=c,spec.nodeName=edge1", []string{"a"}, []string{"spec.driver!=a,spec.driver=c,spec.nodeName=edge1"}},
		"one that has come back": {"spec.driver=a,spec.nodeName=edge1", []string{"a"}, nil},
	} {
		below := fake.NewClientset()
		client := &keeping{below, func(context.Context) []string { return c.drivers }}
		if v := reflect.ValueOf(client); v.Kind() != reflect.Pointer {
			t.Errorf("the kubelet asks whether the client is nil, and can't of a %v", v.Kind())
		}
		if err := client.ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: c.selector}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, a := range below.Actions() {
			got = append(got, a.(clienttesting.DeleteCollectionAction).GetListRestrictions().Fields.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

type plugin struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

func (p plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return p.info, nil
}

// A driver runs that answers at its socket: neither a socket that was left behind, nor a plugin of
// another kind.
func TestRunningDrivers(t *testing.T) {
	root, err := os.MkdirTemp("", "plugins") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	dir := filepath.Join(root, "plugins_registry")
	if got := runningDrivers(t.Context(), root); got != nil {
		t.Errorf("without a folder: %v", got)
	}
	if err := os.MkdirAll(filepath.Join(dir, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	listen := func(name string) net.Listener {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	left := listen("left.sock").(*net.UnixListener)
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	for name, info := range map[string]*registerapi.PluginInfo{
		"dra.sock":       {Type: registerapi.DRAPlugin, Name: "dra.example"},
		"below/dra.sock": {Type: registerapi.DRAPlugin, Name: "another.example"},
		"csi.sock":       {Type: registerapi.CSIPlugin, Name: "csi.example"},
	} {
		s := grpc.NewServer()
		registerapi.RegisterRegistrationServer(s, plugin{info: info})
		l := listen(name)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
	}
	for _, name := range []string{"hangs1.sock", "hangs2.sock", "hangs3.sock"} { // accepts, and never answers
		l := listen(name)
		t.Cleanup(func() { _ = l.Close() })
	}
	start := time.Now()
	if diff := cmp.Diff([]string{"another.example", "dra.example"}, runningDrivers(t.Context(), root)); diff != "" {
		t.Error(diff)
	}
	if took := time.Since(start); took > 2*registrationTimeout {
		t.Errorf("three plugins that hang took %s", took)
	}
}
