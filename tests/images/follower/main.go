// Command follower is a pod that knows nothing of edges: with its ordinary in-cluster configuration and client-go it follows one ConfigMap, and tries things that
// its ServiceAccount may not do. It says on standard output what it sees, each line once until something else is true.
//
//	watched VALUE    what its informer holds of the ConfigMap $FOLLOW, key k
//	got VALUE        what a GET gives
//	secrets REASON   what becomes of listing the namespace's Secrets
//	leases REASON    what becomes of listing Leases, once there is a file /state/leases: never asked before that
//
// It crashes when it finds a file /state/crash.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

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

// says prints a topic's line when it is another than before.
type says struct {
	mu   sync.Mutex
	last map[string]string
}

func (s *says) line(topic, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last[topic] != what {
		s.last[topic] = what
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
	out := &says{last: map[string]string{}}
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
			return errors.New("told to crash")
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
			// Without client-go's patience: it would wait for as long as it is told to come back.
			leases := client.CoordinationV1().RESTClient().Get().Namespace(namespace).Resource("leases").MaxRetries(0)
			out.line("leases", reason(leases.Do(within).Error()))
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
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
