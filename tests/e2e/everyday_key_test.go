package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// replaceAccountKey gives the control plane another key for the tokens of ServiceAccounts, and
// cloudcore, whose tokens in a trial are files, tokens of that key.
func (s *system) replaceAccountKey() {
	s.T.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.Check(err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	s.Check(err)
	private, err := pki.EncodeKey(key)
	s.Check(err)
	dir := s.path(trial.Cloud, "/var/lib/kubeplane/pki")
	s.Check(s.Trial.Stop(s.T.Context(), trial.Cloud, "kubeplane"))
	s.Check(os.WriteFile(filepath.Join(dir, "sa.key"), private, 0o600))
	s.Check(os.WriteFile(filepath.Join(dir, "sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644))
	s.Start(trial.Cloud, "kubeplane")
	for file, account := range map[string]string{"/etc/skerry/cloudcore.kubeconfig": "cloudcore", "/etc/skerry/approver.kubeconfig": "cloudcore-approver"} {
		seconds := int64(100 * 3600)
		answer, err := s.Client.CoreV1().ServiceAccounts(ownNamespace).CreateToken(s.T.Context(), account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
		s.Check(err)
		for _, replica := range options().Replicas() {
			path := s.path(replica, file)
			raw, err := os.ReadFile(path)
			s.Check(err)
			_, before, _ := strings.Cut(string(raw), "token: ")
			before, _, _ = strings.Cut(before, "\n")
			if before == "" {
				s.T.Fatalf("%s has no token", path)
			}
			s.Check(os.WriteFile(path, []byte(strings.ReplaceAll(string(raw), before, answer.Status.Token)), 0o600))
		}
	}
	for _, replica := range options().Replicas() {
		s.Check(s.Trial.Stop(s.T.Context(), replica, "cloudcore"))
		s.Start(replica, "cloudcore")
	}
}

// token is the token in a pod's volume, and the name of the key that signed it.
func (s *system) token(pod corev1.Pod) (token, keyID string, err error) {
	files, err := filepath.Glob(s.path(pod.Spec.NodeName, fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~projected/*/token", pod.UID)))
	if err != nil || len(files) != 1 {
		return "", "", fmt.Errorf("%s has the tokens %q: %w", pod.Name, files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		return "", "", err
	}
	head, _, _ := strings.Cut(string(raw), ".")
	text, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return "", "", err
	}
	var header struct {
		KeyID string `json:"kid"`
	}
	err = json.Unmarshal(text, &header)
	return string(raw), header.KeyID, err
}

// TestEveryday_17: the cluster's key for tokens is replaced while a device is away. Its pods keep
// their device's API on the island, also after a reboot. With the link they all have tokens of the
// new key within minutes, also those that send no requests, and the device takes no token of the
// old one any more; without the link again it is the same.
func TestEveryday_17_AccountKeyIsReplacedWhileTheDeviceIsAway(t *testing.T) {
	s := newSystem(t)
	ns, name := s.followerPod()
	follower := s.WaitPods(ns, "app=follower", "edge1", 1)[0]
	quiet := *s.pod(ns, "quiet", "edge1")
	round := func(name string) {
		t.Helper()
		s.Check(os.WriteFile(s.path("edge1", "/var/lib/follower-state/round"), []byte(name), 0o644))
		s.waitLog("edge1", ns, follower.Name, "pod "+name+" "+follower.Name, "issuer "+name+" verified")
	}
	round("linked")
	old, oldKey, err := s.token(follower)
	s.Check(err)
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	s.replaceAccountKey()
	round("island")
	s.Reboot("edge1", true)
	s.waitRunsAgain("edge1", follower)
	s.waitRunsAgain("edge1", quiet)
	round("booted")

	s.Heal("edge1")
	s.WaitReady("edge1", true)
	for _, pod := range []corev1.Pod{follower, quiet} {
		s.WaitFor("a token of the new key for "+pod.Name, func(ctx context.Context) error {
			token, key, err := s.token(pod)
			if err == nil && key == oldKey {
				err = errors.New("it has that of before")
			}
			if err != nil {
				return err
			}
			review, err := s.Client.AuthenticationV1().TokenReviews().Create(ctx,
				&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
			if err == nil && !review.Status.Authenticated {
				err = fmt.Errorf("kube-apiserver: %s", review.Status.Error)
			}
			return err
		})
	}
	round("healed")
	stale := rest.AnonymousClientConfig(s.deviceConfig("edge1"))
	stale.Dial, stale.BearerToken = s.deviceConfig("edge1").Dial, old
	client, err := kubernetes.NewForConfig(stale)
	s.Check(err)
	refused := func(when string) {
		t.Helper()
		s.WaitFor("the old token to be refused "+when, func(ctx context.Context) error {
			if _, err := client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
				return fmt.Errorf("the answer is %v", err)
			}
			return nil
		})
	}
	refused("with a link")
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	round("island again")
	refused("on the island")
}
