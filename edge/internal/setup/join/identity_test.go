package join_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

// signer behaves like kube-apiserver and its signer, as far as certificate requests go. It is used
// by one goroutine.
type signer struct {
	certificatesclient.CertificateSigningRequestInterface // whatever else is called is a bug

	t       *testing.T
	ca      authority
	now     func() time.Time
	life    time.Duration
	offline bool
	deny    bool
	hold    bool // undecided
	made    []*certificatesv1.CertificateSigningRequest
	gets    int
}

var errOffline = errors.New("no link")

func (s *signer) Create(_ context.Context, csr *certificatesv1.CertificateSigningRequest, _ metav1.CreateOptions) (
	*certificatesv1.CertificateSigningRequest, error) {
	if s.offline {
		return nil, errOffline
	}
	csr = csr.DeepCopy()
	csr.Name = fmt.Sprintf("%s%d", csr.GenerateName, len(s.made))
	csr.UID = types.UID(csr.Name)
	s.made = append(s.made, csr)
	return csr, nil
}

func (s *signer) Get(_ context.Context, name string, _ metav1.GetOptions) (*certificatesv1.CertificateSigningRequest, error) {
	if s.gets++; s.offline {
		return nil, errOffline
	}
	for _, csr := range s.made {
		if csr.Name != name {
			continue
		}
		csr = csr.DeepCopy()
		switch {
		case s.hold:
		case s.deny:
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
				{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "NodeGone", Message: "the node was removed"},
			}
		default:
			csr.Status.Certificate = pki.EncodeCertificates(s.ca.node(s.t, csr.Spec.Request, s.now().Add(-5*time.Minute), s.life))
		}
		return csr, nil
	}
	return nil, apierrors.NewNotFound(certificatesv1.Resource("certificatesigningrequests"), name)
}

// joined is an identity whose certificate began at from.
func joined(t *testing.T, clock *pki.Clock, from time.Time, life time.Duration) (*join.Identity, authority, string) {
	t.Helper()
	dir := t.TempDir()
	ca := newAuthority(t, from)
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.NewNodeCSR(key, edge1)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := pki.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"node.pem":     append(pki.EncodeCertificates(ca.node(t, csr, from, life)), keyPEM...),
		"ca.crt":       pki.EncodeCertificates(ca.cert),
		"cluster.json": []byte(`{"node": "edge1", "server": "cloud.example", "protocol": 1}`),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	id, err := join.Load(dir, nil, clock)
	if err != nil {
		t.Fatal(err)
	}
	return id, ca, dir
}

const year = 365 * 24 * time.Hour

// during runs the rotation inside a bubble of synctest.
func during(t *testing.T, id *join.Identity, s *signer, fn func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(logged(t))
	done := make(chan error, 1)
	go func() { done <- id.Run(ctx, s) }()
	synctest.Wait()
	fn()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRotation(t *testing.T) {
	t.Run("within 70 and 90 % of its life, and the new one is kept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			clock := pki.NewClock(time.Time{}, nil)
			id, ca, dir := joined(t, clock, start, year)
			first, _ := id.Certificate()
			s := &signer{t: t, ca: ca, now: time.Now, life: year}
			during(t, id, s, func() {
				time.Sleep(year * 7 / 10)
				synctest.Wait()
				if len(s.made) != 0 {
					t.Errorf("asked before %v", id.Status().RotateAt)
				}
				time.Sleep(year/5 + time.Hour)
				synctest.Wait()
				if len(s.made) != 1 {
					t.Fatalf("made %d requests; want 1", len(s.made))
				}
				second, _ := id.Certificate()
				if second == first || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
					t.Error("the certificate is still the first")
				}
				again, err := join.Load(dir, nil, clock)
				if err != nil {
					t.Fatal(err)
				}
				if got := again.Status().Fingerprint; got != pki.Fingerprint(second.Leaf) {
					t.Error("a restart would use another certificate")
				}
				if same, _ := id.Certificate(); same != second {
					t.Error("the same certificate is another pointer: sessions would never be resumed")
				}
			})
		})
	})
	t.Run("offline for a while: one request, and it is answered when the link is back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			id, ca, _ := joined(t, pki.NewClock(time.Time{}, nil), time.Now(), year)
			s := &signer{t: t, ca: ca, now: time.Now, life: year, offline: true}
			during(t, id, s, func() {
				time.Sleep(time.Until(id.Status().RotateAt) + 24*time.Hour)
				synctest.Wait()
				if id.Status().LastError == "" {
					t.Error("the status does not say that renewing fails")
				}
				s.offline, s.hold = false, true
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				s.offline = true
				time.Sleep(time.Minute)
				s.offline, s.hold = false, false
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if st := id.Status(); st.LastError != "" || st.NotBefore.Before(time.Now().Add(-3*time.Hour)) {
					t.Errorf("not renewed after the link was back: %+v", st)
				}
				if len(s.made) > 3 {
					t.Errorf("%d requests were made in two hours", len(s.made))
				}
			})
		})
	})
	t.Run("denied: says so, and asks seldom", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			id, ca, _ := joined(t, pki.NewClock(time.Time{}, nil), time.Now(), year)
			s := &signer{t: t, ca: ca, now: time.Now, life: year, deny: true}
			during(t, id, s, func() {
				time.Sleep(time.Until(id.Status().RotateAt) + 24*time.Hour)
				synctest.Wait()
				if n := len(s.made); n < 10 || n > 60 {
					t.Errorf("%d requests in a day", n)
				}
				if id.Status().LastError == "" {
					t.Error("the status does not say why")
				}
			})
		})
	})
	t.Run("a clock that is far ahead asks seldom, until the cloud tells the time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			clock := pki.NewClock(time.Time{}, nil)
			cloud := func() time.Time { return time.Now().Add(-80 * year) }
			id, ca, _ := joined(t, clock, cloud(), year)
			s := &signer{t: t, ca: ca, now: cloud, life: year}
			during(t, id, s, func() {
				time.Sleep(30 * 24 * time.Hour)
				synctest.Wait()
				if len(s.made) != 1 {
					t.Errorf("%d requests in a month", len(s.made))
				}
				clock.Sync(cloud())
				time.Sleep(30 * 24 * time.Hour)
				synctest.Wait()
				if len(s.made) != 1 {
					t.Errorf("%d requests with the right time", len(s.made))
				}
				if id.Status().Expired {
					t.Error("a good certificate is reported as expired")
				}
			})
		})
	})
	t.Run("a clock that stands in the past renews by the cloud's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			clock := pki.NewClock(time.Time{}, nil)
			cloud := func() time.Time { return time.Now().Add(26 * year) }
			id, ca, _ := joined(t, clock, cloud().Add(-year*95/100), year)
			s := &signer{t: t, ca: ca, now: cloud, life: year}
			during(t, id, s, func() {
				clock.Sync(cloud())
				time.Sleep(time.Hour)
				synctest.Wait()
				if len(s.made) != 1 || id.Status().NotBefore.Before(cloud().Add(-2*time.Hour)) {
					t.Errorf("not renewed: %+v", id.Status())
				}
			})
		})
	})
	t.Run("a disk that is full: the certificate waits for room", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			id, ca, dir := joined(t, pki.NewClock(time.Time{}, nil), time.Now(), year)
			s := &signer{t: t, ca: ca, now: time.Now, life: year}
			node := filepath.Join(dir, "node.pem")
			during(t, id, s, func() {
				if err := errors.Join(os.Remove(node), os.MkdirAll(filepath.Join(node, "in the way"), 0o700)); err != nil {
					t.Fatal(err)
				}
				// Not for long: the pauses between attempts grow, and a request that is an hour old
				// at the next attempt is made again. After 5 minutes the pause is 12 minutes at
				// most.
				time.Sleep(time.Until(id.Status().RotateAt) + 5*time.Minute)
				synctest.Wait()
				if id.Status().LastError == "" {
					t.Error("the status does not say that writing fails")
				}
				if err := os.RemoveAll(node); err != nil {
					t.Fatal(err)
				}
				time.Sleep(15 * time.Minute)
				synctest.Wait()
				if id.Status().LastError != "" || len(s.made) != 1 {
					t.Errorf("%q after %d requests", id.Status().LastError, len(s.made))
				}
				if info, err := os.Stat(node); err != nil || info.Mode() != 0o600 {
					t.Errorf("the file: %v, %v", info, err)
				}
			})
		})
	})
}
