package pluginwatch

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// lively answers the question for its options.
type lively struct {
	deviceplugin.UnimplementedDevicePluginServer
}

func (lively) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// Only a call that is under way in several looks in a row is ended, and only at the plugin that
// does not answer; if all answer, at each.
func TestWatch(t *testing.T) {
	const hangs = "goroutine 9 [select]:\nk8s.io/kubernetes/pkg/kubelet/cm/devicemanager.(*endpointImpl).allocate(...)\n"
	for name, test := range map[string]struct {
		stacks []string // of each look; the last one repeats
		silent bool     // one of the two plugins does not answer
		looks  int
		ended  []string
		none   bool // no plugin is connected
	}{
		"rest":           {stacks: []string{"goroutine 1 [running]:\nmain.main()\n"}, looks: 9},
		"short":          {stacks: []string{hangs, hangs, hangs, "", hangs, hangs, hangs}, looks: 7},
		"one is silent":  {stacks: []string{hangs}, silent: true, looks: hangLooks, ended: []string{"b"}},
		"both answer":    {stacks: []string{hangs}, looks: hangLooks, ended: []string{"a", "b"}},
		"no connections": {stacks: []string{hangs}, looks: 9, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			conns := map[string]net.Conn{}
			a, b := strings.ReplaceAll(name, " ", "-")+"-a.sock", strings.ReplaceAll(name, " ", "-")+"-b.sock" // unique in the process
			for _, socket := range []string{a, b} {
				l, err := net.Listen("unix", filepath.Join(dir, socket))
				check(t, err)
				if test.silent && socket == b {
					t.Cleanup(func() { _ = l.Close() }) // accepts by its backlog
				} else {
					s := grpc.NewServer()
					deviceplugin.RegisterDevicePluginServer(s, lively{})
					go func() { _ = s.Serve(l) }()
					t.Cleanup(s.Stop)
				}
				if !test.none {
					conns[socket], err = net.Dial("unix", filepath.Join(dir, socket))
					check(t, err)
					t.Cleanup(func() { _ = conns[socket].Close() })
				}
			}
			look, reports := 0, 0
			w := Watch{
				dir:    dir,
				stacks: func() []byte { look++; return []byte(test.stacks[min(look, len(test.stacks))-1]) },
				report: func(context.Context, string) { reports++ },
			}
			for range test.looks {
				w.look(t.Context())
			}
			var ended []string
			for _, socket := range []string{a, b} {
				if _, err := os.Stat(filepath.Join(dir, socket)); err == nil {
					continue
				}
				ended = append(ended, map[string]string{a: "a", b: "b"}[socket])
				if _, err := conns[socket].Write([]byte("x")); err == nil {
					t.Errorf("%s: the connection still writes", socket)
				}
			}
			if diff := cmp.Diff(test.ended, ended); diff != "" || reports != min(1, len(test.ended)) {
				t.Errorf("%d reports; plugins whose call was ended (-want +got):\n%s", reports, diff)
			}
			for socket, conns := range pluginConns(dir) {
				for _, c := range conns {
					c.Close()
				}
				if len(conns) != 1 {
					t.Errorf("%d connections to %s", len(conns), socket)
				}
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
