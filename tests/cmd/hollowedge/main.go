// Command hollowedge is edgecore without a kubelet: all of it but that one module, for tests that
// stand for the kubelet and for agents themselves. Requests that these would make in the process
// they make at a socket.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/edge/app"
)

func main() {
	config := flag.String("config", "", "edgecore.yaml, with modules.edged.enable: false")
	socket := flag.String("socket", "", "unix socket that answers as it would the device's kubelet")
	speaks := flag.Uint("protocol", 0, "the version of the link's protocol that it speaks, as an older release does; 0: this release's")
	keys := flag.String("keys", "", "directory of the keys that sign versions of edgecore; empty: edgecore's own")
	flag.Parse()
	var options []app.Option
	if *speaks != 0 {
		options = append(options, app.Speaking(protocol.Window{Min: uint32(*speaks), Max: uint32(*speaks)}))
	}
	if *keys != "" {
		options = append(options, app.TrustingKeys(*keys))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *config, *socket, options); err != nil {
		fmt.Fprintln(os.Stderr, "hollowedge:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, file, socket string, options []app.Option) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	cfg, err := app.Configuration(file, data)
	if err != nil {
		return err
	}
	ctx, _ = cli.Logging(ctx, cfg.Log.Format, cfg.Log.Verbosity)
	a, err := app.New(ctx, cfg, options...)
	if err != nil {
		return err
	}
	// That of a process that was killed.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing an old socket: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	transport, host := a.KubeletTransport()
	target, err := url.Parse(host)
	if err != nil {
		return fmt.Errorf("the device's API: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	mux.Handle("POST /report/{resource}/{name}/{uid}", reporter(a))
	var asked, done atomic.Int64
	a.StandIn(func() { asked.Add(1) }, func() bool { return done.Load() >= asked.Load() })
	mux.HandleFunc("GET /repeat", func(w http.ResponseWriter, _ *http.Request) { // 0: there is nothing to be reported again
		n := asked.Load()
		if n <= done.Load() {
			n = 0
		}
		_, _ = fmt.Fprint(w, n)
	})
	mux.HandleFunc("POST /repeat/{count}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("count"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		done.Store(n)
	})
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: mux}
	defer server.Close()
	go func() { _ = server.Serve(l) }() // until Close
	err = a.Run(ctx)
	if a.Switching() && ctx.Err() == nil {
		return a.Again(ctx)
	}
	return err
}

// reporter accepts an agent's reports of one of Skerry's own objects.
func reporter(a *app.App) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 16<<10))
		if err == nil {
			err = a.Report(r.Context(), v1alpha1.Resource(r.PathValue("resource")), r.PathValue("name"), types.UID(r.PathValue("uid")), body)
		}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			http.Error(w, err.Error(), int(status.Status().Code))
		} else if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}
