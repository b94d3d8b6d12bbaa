package incluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// tokenOf reads the token that a pod's container sees, where its kubelet has put it.
func (s *system) tokenOf(pod corev1.Pod) ([]byte, error) {
	h, err := s.Trial.Host(pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(h.Root(), "var/lib/kubelet/pods", string(pod.UID), "volumes/kubernetes.io~projected/*/token"))
	if err != nil || len(files) != 1 {
		return nil, errors.Join(err, fmt.Errorf("%s has %d tokens", pod.Name, len(files)))
	}
	return os.ReadFile(files[0])
}

// accepted asks kube-apiserver whose a token is.
func (s *system) accepted(ctx context.Context, token []byte) error {
	cfg := rest.AnonymousClientConfig(s.Config)
	cfg.BearerToken = string(token)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	_, err = client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	return err
}

// The tokens of cloudcore's pods are renewed by their kubelets, and the old ones are refused from
// then on: cloudcore uses the new ones, without a restart, and the devices' reports from that time
// arrive.
//
// A kubelet renews a token after four fifths of its life, which Kubernetes makes ten minutes at the
// least. Here it has two other reasons: the ServiceAccount is made again, which ends all tokens of
// the old one, and the kubelets are restarted, which remember tokens in memory alone. So there is a
// time between the two in which cloudcore has no valid token, unlike when a token is renewed in
// time.
func TestShip_12_AccountTokenRenewed(t *testing.T) {
	s := newSystem(t)
	s.waitRolledOut(deployment)
	pods, err := s.pods(t.Context())
	s.Check(err)
	old := map[string][]byte{}
	for name, p := range pods {
		old[name], err = s.tokenOf(p)
		s.Check(err)
		s.Check(s.accepted(t.Context(), old[name]))
	}
	sample := s.reporter("edge1")

	accounts := s.Client.CoreV1().ServiceAccounts(systemNamespace)
	account, err := accounts.Get(t.Context(), "cloudcore", metav1.GetOptions{})
	s.Check(err)
	s.Check(accounts.Delete(t.Context(), "cloudcore", metav1.DeleteOptions{}))
	account.ObjectMeta = metav1.ObjectMeta{Name: account.Name, Labels: account.Labels}
	_, err = accounts.Create(t.Context(), account, metav1.CreateOptions{})
	s.Check(err)
	for name, token := range old {
		s.WaitFor("the token of "+name+" to be refused", func(ctx context.Context) error {
			if err := s.accepted(ctx, token); !apierrors.IsUnauthorized(err) {
				return fmt.Errorf("kube-apiserver answers %v", err)
			}
			return nil
		})
	}
	s.post(sample, "fail") // reported while cloudcore's writes are refused

	for _, n := range trialNodes() {
		s.Check(s.Trial.Stop(t.Context(), n.Name, "kubelet"))
		s.Check(s.Trial.Start(t.Context(), n.Name, "kubelet"))
	}
	for name, p := range pods {
		s.WaitFor("a new token for "+name, func(ctx context.Context) error {
			token, err := s.tokenOf(p)
			if err == nil && bytes.Equal(token, old[name]) {
				err = errors.New("it has the old one")
			}
			if err == nil {
				err = s.accepted(ctx, token)
			}
			return err
		})
	}
	s.WaitFor("what was reported meanwhile", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(sample.Namespace).Get(ctx, sample.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return errors.New("the pod is shown as Ready")
	})
	s.post(sample, "heal")
	s.reports("edge1")
	s.reports("edge2")
	s.leads("after-the-token")
	for name, p := range pods {
		now, err := s.Client.CoreV1().Pods(systemNamespace).Get(t.Context(), name, metav1.GetOptions{})
		s.Check(err)
		before, after := p.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
		if before.ContainerID != after.ContainerID || after.RestartCount != before.RestartCount {
			t.Errorf("%s was restarted: %d restarts before, %d after, at %v", name, before.RestartCount, after.RestartCount, after.State.Running.StartedAt.Format(time.RFC3339))
		}
	}
}
