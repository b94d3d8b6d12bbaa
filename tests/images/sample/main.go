// Command sample is the trial's application: a page that shows the pod's data from Kubernetes, and
// a probe that fails on request.
//
// GET / shows the pod's name, its ConfigMap and Secret volumes, whose token it has and when that
// expires; where STORE has the URL of a store, which is another copy of it, also the store's
// answer. GET /store is such an answer: its name, and its number of requests. GET /healthz answers
// 200 until POST /fail, and again after POST /heal. GET /fetch?url=URL gets another URL, as a front
// gets its backend. GET /name, and any datagram to the same port over UDP, is answered with the
// pod's name. POST /crash ends the process with code 1. Output of every request is also a line on
// standard output.
//
// Where NOTE has the path of a file, each SIGTERM becomes a line in it, and so does the end that
// follows: the pod's name, CONTAINER, the event, and the time in nanoseconds. ON_TERM "ignore" has
// it heed no SIGTERM, a number has it exit with that code.
//
// The program is the image's only file, so it is its tools too: "get URL" asks another copy, "sum
// FILE" prints a file's SHA-256, "hog" takes memory until it is killed, "terminal" prints its
// terminal's size, "note TEXT" adds a line to NOTE, and called by the name tar it packs and unpacks
// for `kubectl cp`.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	run := run
	if filepath.Base(os.Args[0]) == "tar" {
		run = func(_ context.Context, args []string) error { return runTar(args, os.Stdin, os.Stdout) }
	}
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// run runs the command of the arguments; without any it serves.
func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "get":
		return get(ctx, args[1])
	case len(args) == 2 && args[0] == "sum":
		return sum(args[1], os.Stdout)
	case len(args) == 2 && args[0] == "note":
		note(args[1])
		return nil
	case len(args) == 1 && args[0] == "hog":
		log.Printf("has %d MiB", hog())
		return nil
	case len(args) == 1 && args[0] == "terminal":
		return terminal(ctx, os.Stdout)
	case len(args) != 0:
		return fmt.Errorf("unknown arguments %q", args)
	}
	address := cmp.Or(os.Getenv("LISTEN"), ":8080")
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	server := &http.Server{Handler: new(app).routes(), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		note("sigterm")
		if os.Getenv("ON_TERM") == "ignore" {
			return
		}
		graceful, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		err := server.Shutdown(graceful)
		note("end")
		if code, number := strconv.Atoi(os.Getenv("ON_TERM")); number == nil {
			os.Exit(code)
		}
		done <- err
	}()
	go answerUDP(ctx, address)
	log.Printf("listening on %s", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return <-done
}

// note adds a line to the file that NOTE names.
func note(what string) {
	path := os.Getenv("NOTE")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err == nil {
		_, err = fmt.Fprintf(f, "%s %s %s %d\n", os.Getenv("POD_NAME"), os.Getenv("CONTAINER"), what, time.Now().UnixNano())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		log.Printf("no note: %v", err)
	}
}

type app struct {
	failing atomic.Bool
	visits  atomic.Int64 // of the store
}

func (a *app) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, page())
		if url := os.Getenv("STORE"); url != "" {
			fmt.Fprintf(w, "store: %s\n", askStore(r.Context(), url))
		}
	})
	mux.HandleFunc("GET /store", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%s on node %s, visit %d", os.Getenv("POD_NAME"), os.Getenv("NODE_NAME"), a.visits.Add(1))
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if a.failing.Load() {
			http.Error(w, "failing on request", http.StatusInternalServerError)
			return
		}
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("POST /fail", func(w http.ResponseWriter, _ *http.Request) { a.failing.Store(true); io.WriteString(w, "failing\n") })
	mux.HandleFunc("POST /heal", func(w http.ResponseWriter, _ *http.Request) { a.failing.Store(false); io.WriteString(w, "healthy\n") })
	mux.HandleFunc("GET /name", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, os.Getenv("POD_NAME")) })
	mux.HandleFunc("GET /fetch", fetch)
	mux.HandleFunc("POST /crash", func(http.ResponseWriter, *http.Request) { log.Fatal("crash requested") })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
		}
		mux.ServeHTTP(w, r)
	})
}

// fetch gets a URL as any program in a pod does: by name, and with a connection of its own.
func fetch(w http.ResponseWriter, r *http.Request) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.URL.Query().Get("url"), nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer res.Body.Close()
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, io.LimitReader(res.Body, 1<<20)) // the client sees that something is missing
}

// Attempts at the store, each with a connection of its own: one that leads to a device which lost
// its power this very moment is given up, and the next leads elsewhere.
const (
	storeAttempts = 3
	storeTimeout  = 1500 * time.Millisecond
)

// askStore is the store's answer, or the error.
func askStore(ctx context.Context, url string) string {
	client := http.Client{Timeout: storeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	var last error
	for range storeAttempts {
		answer, err := ask(ctx, client, url)
		if err == nil {
			return answer
		}
		last = err
	}
	return last.Error()
}

func ask(ctx context.Context, client http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", url, res.Status)
	}
	return string(body), err
}

// answerUDP answers each datagram with the pod's name.
func answerUDP(ctx context.Context, address string) {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		log.Printf("no UDP: %v", err)
		return
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	b := make([]byte, 1500)
	for {
		_, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo([]byte(os.Getenv("POD_NAME")), from) // as with any datagram
	}
}

func page() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pod %s on node %s\n", os.Getenv("POD_NAME"), os.Getenv("NODE_NAME"))
	for _, dir := range []string{"config", "secret"} {
		files, err := filepath.Glob(filepath.Join("/", dir, "*"))
		if err != nil || len(files) == 0 {
			fmt.Fprintf(&b, "%s: none\n", dir)
			continue
		}
		slices.Sort(files)
		for _, f := range files {
			if strings.HasPrefix(filepath.Base(f), "..") {
				continue // the links by which the kubelet changes all files at once
			}
			value, err := os.ReadFile(f)
			if err != nil {
				value = []byte(err.Error())
			}
			fmt.Fprintf(&b, "%s %s = %s\n", dir, filepath.Base(f), strings.TrimSpace(string(value)))
		}
	}
	fmt.Fprintf(&b, "token: %s\n", token())
	return b.String()
}

// token returns the claims of the mounted token; it is not verified, and the token itself is not
// shown.
func token() string {
	raw, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/token")
	if err != nil {
		return "none"
	}
	parts := strings.Split(strings.TrimSpace(string(raw)), ".")
	if len(parts) != 3 {
		return "not a JWT"
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "not a JWT"
	}
	var claims struct {
		Subject string `json:"sub"`
		Expires int64  `json:"exp"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "not a JWT"
	}
	return fmt.Sprintf("%s until %s", claims.Subject, time.Unix(claims.Expires, 0).UTC().Format(time.RFC3339))
}

func sum(path string, out io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	fmt.Fprintf(out, "%x\n", h.Sum(nil))
	return nil
}

func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(os.Stdout, io.LimitReader(res.Body, 1<<20)); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, res.Status)
	}
	return nil
}

// hog takes memory until the kernel ends it, or there are 512 MiB.
func hog() int {
	var all [][]byte
	for range 512 {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = 1
		}
		all = append(all, b)
	}
	return len(all)
}
