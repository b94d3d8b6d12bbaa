// Command follower is a pod without any knowledge of edges: with its ordinary in-cluster
// configuration and client-go it follows one ConfigMap, and tries requests that its ServiceAccount
// may not make. It prints its observations on standard output, each line once until another is
// true.
//
//	watched VALUE    its informer's value of the ConfigMap $FOLLOW, key k
//	got VALUE        the value by a GET
//	secrets REASON   the error of listing the namespace's Secrets
//	leases REASON    the error of listing Leases, once there is a file /state/leases: never asked
//	before that
//	pod ROUND RESULT  a GET of its own Pod: its name, or the error
//	issuer ROUND RESULT  "verified" where its own token holds by the keys that the discovery
//	document leads to
//
// ROUND is the content of the file /state/round, so that a reader knows which lines are current;
// empty without that file.
//
// It crashes when it finds a file /state/crash.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

// printer prints a topic's line when it differs from the last one.
type printer struct {
	mu   sync.Mutex
	last map[string]string
}

func (p *printer) line(topic, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last[topic] != what {
		p.last[topic] = what
		fmt.Println(topic, what)
	}
}

func run(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	config.Timeout = 0
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	space, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return err
	}
	namespace, name := strings.TrimSpace(string(space)), os.Getenv("FOLLOW")
	out := &printer{last: map[string]string{}}
	fmt.Println("started")

	informer := cache.NewSharedInformer(cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", namespace,
		fields.OneTermEqualSelector(metav1.ObjectNameField, name)), &corev1.ConfigMap{}, 0)
	value := func(o any) string { return o.(*corev1.ConfigMap).Data["k"] }
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { out.line("watched", value(o)) },
		UpdateFunc: func(_, o any) { out.line("watched", value(o)) },
		DeleteFunc: func(any) { out.line("watched", "nothing") },
	}); err != nil {
		return err
	}
	go informer.RunWithContext(ctx)

	for {
		if os.Remove("/state/crash") == nil {
			return errors.New("crash requested")
		}
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		got, err := client.CoreV1().ConfigMaps(namespace).Get(within, name, metav1.GetOptions{})
		if err != nil {
			out.line("got", reason(err))
		} else {
			out.line("got", value(got))
		}
		_, err = client.CoreV1().Secrets(namespace).List(within, metav1.ListOptions{ResourceVersion: "0"})
		out.line("secrets", reason(err))
		if _, err := os.Stat("/state/leases"); err == nil {
			// Without client-go's patience: it would wait for as long as the answer asks it to.
			leases := client.CoordinationV1().RESTClient().Get().Namespace(namespace).Resource("leases").MaxRetries(0)
			out.line("leases", reason(leases.Do(within).Error()))
		}
		if round, err := os.ReadFile("/state/round"); err == nil {
			out.line("pod", string(round)+" "+ownPod(within, client, namespace))
			out.line("issuer", string(round)+" "+issuer(within, config))
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// ownPod asks for the pod's own object, once.
func ownPod(ctx context.Context, client kubernetes.Interface, namespace string) string {
	name, err := os.Hostname()
	if err != nil {
		return err.Error()
	}
	var pod corev1.Pod
	if err := client.CoreV1().RESTClient().Get().MaxRetries(0).Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(&pod); err != nil {
		return reason(err)
	}
	return pod.Name
}

// issuer verifies the pod's own token as any other service would (OpenID Connect Discovery 1.0, 4):
// by the keys at the address that the issuer's document names.
func issuer(ctx context.Context, config *rest.Config) string {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err.Error()
	}
	get := func(url string, into any) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		res, err := client.Do(r)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return json.NewDecoder(res.Body).Decode(into)
	}
	var document struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := get(config.Host+"/.well-known/openid-configuration", &document); err != nil {
		return "document: " + err.Error()
	}
	var keys jose.JSONWebKeySet
	if err := get(document.Keys, &keys); err != nil {
		return "keys: " + err.Error()
	}
	raw, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/token")
	if err != nil {
		return err.Error()
	}
	token, err := jwt.ParseSigned(string(raw), []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
	if err != nil {
		return err.Error()
	}
	var claims jwt.Claims
	if err := token.Claims(&keys, &claims); err != nil {
		return "token: " + err.Error()
	}
	if claims.Issuer != document.Issuer {
		return "the token is of another issuer: " + claims.Issuer
	}
	return "verified"
}

func reason(err error) string {
	if err == nil {
		return "allowed"
	}
	if r := apierrors.ReasonForError(err); r != metav1.StatusReasonUnknown {
		return string(r)
	}
	return err.Error()
}
