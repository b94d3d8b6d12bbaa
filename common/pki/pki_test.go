package pki_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/pki"
)

func request(t testing.TB, template *x509.CertificateRequest, key any) []byte {
	t.Helper()
	if key == nil {
		key = newKey(t)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestParseNodeCSR(t *testing.T) {
	good := pkix.Name{CommonName: "system:node:edge1", Organization: []string{"system:nodes"}}
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	strong, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	two := good
	commonName := asn1.ObjectIdentifier{2, 5, 4, 3}
	two.ExtraNames = []pkix.AttributeTypeAndValue{{Type: commonName, Value: "system:node:edge2"}, {Type: commonName, Value: "system:node:edge1"}}
	unit := good
	unit.OrganizationalUnit = []string{"unit"}
	forged := request(t, &x509.CertificateRequest{Subject: good}, nil)
	block, _ := pem.Decode(forged)
	block.Bytes[len(block.Bytes)-1] ^= 1
	forged = pem.EncodeToMemory(block)
	long := good
	long.CommonName += strings.Repeat("a", 253)

	for name, tc := range map[string]struct {
		csr  []byte
		want string // part of the error; "": good
	}{
		"good":                {request(t, &x509.CertificateRequest{Subject: good}, nil), ""},
		"RSA":                 {request(t, &x509.CertificateRequest{Subject: good}, strong), ""},
		"weak key":            {request(t, &x509.CertificateRequest{Subject: good}, weak), "256 bits"},
		"forged":              {forged, "own key"},
		"DNS name":            {request(t, &x509.CertificateRequest{Subject: good, DNSNames: []string{"a"}}, nil), "alternative names"},
		"address":             {request(t, &x509.CertificateRequest{Subject: good, IPAddresses: []net.IP{{1, 2, 3, 4}}}, nil), "alternative names"},
		"no group":            {request(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: good.CommonName}}, nil), "subject"},
		"two names":           {request(t, &x509.CertificateRequest{Subject: two}, nil), "subject"},
		"a unit":              {request(t, &x509.CertificateRequest{Subject: unit}, nil), "subject"},
		"name too long":       {request(t, &x509.CertificateRequest{Subject: long}, nil), "name of a node"},
		"two blocks":          {append(request(t, &x509.CertificateRequest{Subject: good}, nil), forged...), "one PEM block"},
		"nothing":             {nil, "one PEM block"},
		"too large":           {make([]byte, pki.MaxCSR+1), "bytes"},
		"another kind of PEM": {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}), "one PEM block"},
		"administrators": {request(t, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: good.CommonName, Organization: []string{"system:nodes", "system:masters"}}}, nil), "subject"},
		"no node": {request(t, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:nodes"}}}, nil), "does not begin"},
		"empty name": {request(t, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "system:node:", Organization: []string{"system:nodes"}}}, nil), "name of a node"},
	} {
		t.Run(name, func(t *testing.T) {
			_, node, err := pki.ParseNodeCSR(tc.csr)
			switch {
			case tc.want == "" && (err != nil || node != "edge1"):
				t.Errorf("got %q, %v; want edge1", node, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %q, %v; want an error with %q", node, err, tc.want)
			}
		})
	}
}

func TestNewNodeCSR(t *testing.T) {
	csr, err := pki.NewNodeCSR(newKey(t), "edge1")
	if err != nil {
		t.Fatal(err)
	}
	if _, node, err := pki.ParseNodeCSR(csr); err != nil || node != "edge1" {
		t.Errorf("got %q, %v", node, err)
	}
}

func FuzzParseNodeCSR(f *testing.F) {
	f.Add(request(f, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:edge1", Organization: []string{"system:nodes"}}}, nil))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n"))
	// A control plane's names in addition to a node's.
	f.Add(request(f, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:edge1", Organization: []string{"system:nodes", "system:masters"}}}, nil))
	f.Add(request(f, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:edge1", Organization: []string{"system:nodes"}}, DNSNames: []string{"kubernetes.default.svc"}}, nil))
	f.Add(request(f, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:../\n$(reboot)", Organization: []string{"system:nodes"}}}, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		csr, node, err := pki.ParseNodeCSR(data)
		if err != nil {
			return
		}
		if pki.ValidNodeName(node) != nil || csr.Subject.CommonName != "system:node:"+string(node) || len(csr.Subject.Organization) != 1 {
			t.Errorf("took %q for the node %q", csr.Subject, node)
		}
	})
}

func TestToken(t *testing.T) {
	cert := authority(t).cert
	token, err := pki.NewToken(pki.PinOf(cert))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pki.ParseToken(" " + token.String() + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(token, got); diff != "" {
		t.Error(diff)
	}
	for name, s := range map[string]string{
		"empty":             "",
		"no hash":           token.Bearer(),
		"short hash":        token.String()[:len(token.String())-1],
		"other hash":        token.Bearer() + "@sha512:" + strings.Repeat("00", 32),
		"hash not hex":      token.Bearer() + "@sha256:" + strings.Repeat("zz", 32),
		"no secret":         token.ID + "@" + token.CA.String(),
		"capitals":          strings.ToUpper(token.Bearer()) + "@" + token.CA.String(),
		"secret too long":   token.Bearer() + "a@" + token.CA.String(),
		"newline in secret": token.ID + ".\n" + token.Secret[1:] + "@" + token.CA.String(),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pki.ParseToken(s)
			if err == nil {
				t.Fatal("taken")
			}
			if strings.Contains(err.Error(), token.Secret) {
				t.Errorf("the error has the secret: %v", err)
			}
		})
	}
}

// FuzzParseNodeCSR_signed has names that are signed by the request's own key: behind the signature.
func FuzzParseNodeCSR_signed(f *testing.F) {
	f.Add("system:node:edge1", "system:nodes", "", "", "")
	f.Add("system:node:edge1", "system:nodes", "system:masters", "", "")
	f.Add("system:node:edge1", "system:nodes", "", "unit", "")
	f.Add("system:node:еdge1", "system:nodes", "", "", "edge1.example.") // a Cyrillic letter
	f.Add("system:node:", "system:nodes\x00", "", "", "")
	f.Add("system:node:EDGE1", "system:nodes ", "", "", "")
	key := newKey(f)
	f.Fuzz(func(t *testing.T, name, group, another, unit, host string) {
		c := &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: []string{group}}}
		if another != "" {
			c.Subject.Organization = append(c.Subject.Organization, another)
		}
		if unit != "" {
			c.Subject.OrganizationalUnit = []string{unit}
		}
		if host != "" {
			c.DNSNames = []string{host}
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, c, key)
		if err != nil {
			t.Skip()
		}
		_, node, err := pki.ParseNodeCSR(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		switch {
		case err != nil:
		case pki.ValidNodeName(node) != nil || name != "system:node:"+string(node) || group != "system:nodes" || another+unit+host != "":
			t.Errorf("took %q of %q, %q, %q, %q for the node %q", name, group, another, unit, host, node)
		}
	})
}

func FuzzParseToken(f *testing.F) {
	f.Add("abcdef.0123456789abcdef@sha256:" + strings.Repeat("0a", 32))
	f.Add("abcdef.0123456789abcdef")
	f.Fuzz(func(t *testing.T, s string) {
		token, err := pki.ParseToken(s)
		if err != nil {
			return
		}
		again, err := pki.ParseToken(token.String())
		if err != nil || again != token {
			t.Errorf("%q was read as %+v, and that as %+v (%v)", s, token, again, err)
		}
	})
}

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now() // synctest's clock begins in 2000: a device whose clock is far behind
		built := start.Add(26 * 365 * 24 * time.Hour)
		var kept []time.Time
		c := pki.NewClock(built, func(k time.Time) { kept = append(kept, k) })
		if got := c.Now(); !got.Equal(built) {
			t.Errorf("Now is %v; want the build's date %v", got, built)
		}
		signed := built.Add(48 * time.Hour)
		c.AtLeast(signed)
		c.AtLeast(built) // older times are ignored
		if got := c.Now(); !got.Equal(signed) {
			t.Errorf("Now is %v; want %v", got, signed)
		}
		cloud := signed.Add(100 * 24 * time.Hour)
		c.Sync(cloud)
		time.Sleep(time.Hour)
		if got, want := c.Now(), cloud.Add(time.Hour); !got.Equal(want) {
			t.Errorf("Now is %v; want the cloud's time carried on, %v", got, want)
		}
		if got, want := c.Skew(), start.Sub(cloud); got != want {
			t.Errorf("Skew is %v; want %v", got, want)
		}
		c.Sync(cloud.Add(2 * time.Hour)) // less than a day on: not worth a write
		if diff := cmp.Diff([]time.Time{signed, cloud}, kept); diff != "" {
			t.Errorf("kept times (-want +got):\n%s", diff)
		}
	})
	t.Run("a clock that is ahead gives way to the cloud's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := pki.NewClock(time.Time{}, nil)
			cloud := time.Now().Add(-80 * 365 * 24 * time.Hour)
			c.Sync(cloud)
			if got := c.Now(); !got.Equal(cloud) {
				t.Errorf("Now is %v; want %v", got, cloud)
			}
		})
	})
}

type ca struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func authority(t testing.TB) ca {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "a CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	return ca{sign(t, template, template, key, key), key}
}

func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (c ca) leaf(t testing.TB, subject pkix.Name, usage x509.ExtKeyUsage, notAfter time.Time) *tls.Certificate {
	t.Helper()
	key := newKey(t)
	cert := sign(t, &x509.Certificate{
		Subject: subject, NotBefore: c.cert.NotBefore, NotAfter: notAfter, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, c.cert, key, c.key)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// TestTLS runs real handshakes, with the CA and the client's certificate changing between them.
func TestTLS(t *testing.T) {
	server, clients, others := authority(t), authority(t), authority(t)
	later := time.Now().Add(30 * time.Minute)
	serving := server.leaf(t, pkix.Name{CommonName: "cloudcore"}, x509.ExtKeyUsageServerAuth, later)
	node := pkix.Name{CommonName: "system:node:edge1", Organization: []string{"system:nodes"}}

	var pool atomic.Pointer[x509.CertPool]
	var now atomic.Pointer[time.Time]
	cfg := pki.ServerTLS(pki.Server{
		Certificate: func() (*tls.Certificate, error) { return serving, nil },
		ClientCAs:   pool.Load,
		Now: func() time.Time {
			if t := now.Load(); t != nil {
				return *t
			}
			return time.Now()
		},
		Protocols: []string{"skerry/1"},
	})
	var cert atomic.Pointer[tls.Certificate]
	cert.Store(clients.leaf(t, node, x509.ExtKeyUsageClientAuth, later))
	client := pki.ClientTLS(pki.Client{
		Roots:       pki.Pool(server.cert),
		Certificate: func() (*tls.Certificate, error) { return cert.Load(), nil },
		Protocols:   []string{"skerry/1"},
	})
	client.ServerName = "localhost"

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// shake returns the server's state after a byte went each way: that is when the client has its
	// ticket.
	shake := func() (tls.ConnectionState, error) {
		done := make(chan error, 1)
		go func() {
			c, err := tls.DialWithDialer(&net.Dialer{Deadline: time.Now().Add(10 * time.Second)}, "tcp", l.Addr().String(), client)
			if err != nil {
				done <- err
				return
			}
			defer c.Close()
			_, err = io.ReadFull(c, make([]byte, 1))
			if err == nil {
				_, err = c.Write([]byte{1})
			}
			done <- err
		}()
		conn, err := l.Accept()
		if err != nil {
			return tls.ConnectionState{}, err
		}
		defer conn.Close()
		s := tls.Server(conn, cfg)
		if err := s.Handshake(); err != nil {
			conn.Close()
			<-done
			return tls.ConnectionState{}, err
		}
		if _, err := s.Write([]byte{1}); err != nil {
			return tls.ConnectionState{}, err
		}
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			return tls.ConnectionState{}, err
		}
		return s.ConnectionState(), <-done
	}
	refused := func(why string) {
		t.Helper()
		if _, err := shake(); err == nil {
			t.Errorf("let in: %s", why)
		}
	}
	accepted := func(resumed bool, want *tls.Certificate) {
		t.Helper()
		cs, err := shake()
		if err != nil {
			t.Fatal(err)
		}
		if cs.Version != tls.VersionTLS13 || cs.NegotiatedProtocol != "skerry/1" || len(cs.VerifiedChains) == 0 {
			t.Errorf("version %x, protocol %q, %d verified chains", cs.Version, cs.NegotiatedProtocol, len(cs.VerifiedChains))
		}
		if cs.DidResume != resumed {
			t.Errorf("resumed: %v; want %v", cs.DidResume, resumed)
		}
		if !cs.PeerCertificates[0].Equal(want.Leaf) {
			t.Error("the server saw another certificate than the client's current one")
		}
	}

	shared := func() *tls.Config {
		t.Helper()
		c, err := cfg.GetConfigForClient(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}

	refused("the client CA is not known yet")
	pool.Store(pki.Pool(others.cert))
	refused("signed by another cluster's CA")
	before := shared()
	pool.Store(pki.Pool(clients.cert))
	if shared() == before || shared() != shared() {
		t.Error("connections of one pool share a configuration, those of another don't")
	}
	first := cert.Load()
	accepted(false, first)
	accepted(true, first)
	cert.Store(clients.leaf(t, node, x509.ExtKeyUsageClientAuth, later))
	accepted(false, cert.Load()) // a rotation: no ticket of the old certificate is used
	accepted(true, cert.Load())
	pool.Store(pki.Pool(others.cert))
	refused("resumed after the CA was replaced")
	pool.Store(pki.Pool(clients.cert, others.cert))
	accepted(true, cert.Load())
	now.Store(new(later.Add(time.Minute)))
	refused("expired since, by the server's clock")
	now.Store(nil)
	cert.Store(clients.leaf(t, node, x509.ExtKeyUsageServerAuth, later))
	refused("a certificate for servers")
	cert.Store(&tls.Certificate{})
	refused("no certificate")
}

func TestNodeOf(t *testing.T) {
	c := authority(t)
	node := pkix.Name{CommonName: "system:node:edge1", Organization: []string{"system:nodes"}}
	for name, tc := range map[string]struct {
		cert *tls.Certificate
		ok   bool
	}{
		"node":        {c.leaf(t, node, x509.ExtKeyUsageClientAuth, time.Now()), true},
		"server":      {c.leaf(t, node, x509.ExtKeyUsageServerAuth, time.Now()), false},
		"not a node":  {c.leaf(t, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, x509.ExtKeyUsageClientAuth, time.Now()), false},
		"not a group": {c.leaf(t, pkix.Name{CommonName: "system:node:edge1"}, x509.ExtKeyUsageClientAuth, time.Now()), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := pki.NodeOf(tc.cert.Leaf); (err == nil) != tc.ok {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
