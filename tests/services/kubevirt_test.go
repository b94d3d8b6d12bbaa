package services_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// virtualMachineCRD is as much of KubeVirt as cloudcore meets: the kind.
const virtualMachineCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: virtualmachineinstances.kubevirt.io}
spec:
  group: kubevirt.io
  scope: Namespaced
  names: {plural: virtualmachineinstances, singular: virtualmachineinstance, kind: VirtualMachineInstance, shortNames: [vmi]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// virtualMachine is a VirtualMachineInstance as KubeVirt's controllers have it once it
// runs on a node.
func virtualMachine(name, node string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s, namespace: sample, labels: {kubevirt.io/nodeName: %s}}
spec: {domain: {devices: {autoattachGraphicsDevice: true}}}
status: {nodeName: %[2]s, phase: Running}
`, name, node)
}

// virtAPI stands for KubeVirt's API server: the aggregated API subresources.kubevirt.io, with a VNC
// server behind each machine.
type virtAPI struct {
	keys chan uint32 // that were pressed

	mu   sync.Mutex
	seen []string // the requests and their users, once each
}

const virtPort = 8643

// runVirtAPI serves on the cloud's host and registers with kube-apiserver until the test ends.
func (s *system) runVirtAPI() *virtAPI {
	s.T.Helper()
	v := &virtAPI{keys: make(chan uint32, 16)}
	const name = "virt-api.sample.svc" // the name that kube-apiserver expects in the certificate
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.Check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	s.Check(err)
	// The user of a forwarded request is accepted from kube-apiserver alone.
	proxies := x509.NewCertPool()
	if ca := s.Kubectl("-n", "kube-system", "get", "configmap", "extension-apiserver-authentication", "-o", `jsonpath={.data.requestheader-client-ca-file}`); !proxies.AppendCertsFromPEM([]byte(ca)) {
		s.T.Fatalf("no certificate in %q", ca)
	}
	h, err := s.Trial.Host(trial.Cloud)
	s.Check(err)
	var l net.Listener
	s.Check(h.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(lab.Cloud().String(), strconv.Itoa(virtPort)))
		return err
	}))
	server := &http.Server{Handler: v, ReadHeaderTimeout: 10 * time.Second, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: proxies,
	}}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(l, "", "") }()
	s.T.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	bundle := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	s.make(fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: virt-api, namespace: sample}
spec: {type: ExternalName, externalName: %s}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.subresources.kubevirt.io}
spec:
  group: subresources.kubevirt.io
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  caBundle: %s
  service: {name: virt-api, namespace: sample, port: %d}
`, lab.Cloud(), bundle, virtPort))
	s.WaitFor("subresources.kubevirt.io to be available", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "apiservice", "v1.subresources.kubevirt.io", "-o", `jsonpath={.status.conditions[?(@.type=="Available")]}`)
		if err == nil && !strings.Contains(out, `"status":"True"`) {
			err = errors.New(out)
		}
		return err
	})
	return v
}

// ServeHTTP implements http.Handler.
func (v *virtAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const group = "/apis/subresources.kubevirt.io/v1"
	rest, ok := strings.CutPrefix(r.URL.Path, group+"/namespaces/sample/virtualmachineinstances/")
	if !ok {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"subresources.kubevirt.io/v1","resources":[]}`)
		return
	}
	v.mu.Lock()
	v.seen = append(v.seen, r.Header.Get("X-Remote-User")+" "+rest)
	v.mu.Unlock()
	name, kind, _ := strings.Cut(rest, "/")
	upgrader := websocket.Upgrader{Subprotocols: []string{"plain.kubevirt.io"}}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // it has been answered
	}
	defer ws.Close()
	if kind == "vnc" {
		_ = serveRFB(&messages{ws: ws}, name, v.keys) // the client's end is an error too
		return
	}
	_, _ = io.Copy(&messages{ws: ws}, io.MultiReader(strings.NewReader(name+" login: "), &messages{ws: ws}))
}

func (v *virtAPI) asked() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.seen...)
}

// messages is a websocket as a stream, with a message for each write: as KubeVirt has it.
type messages struct {
	ws   *websocket.Conn
	rest []byte
}

func (m *messages) Read(b []byte) (int, error) {
	for len(m.rest) == 0 {
		_, data, err := m.ws.ReadMessage()
		if err != nil {
			return 0, err
		}
		m.rest = data
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

func (m *messages) Write(b []byte) (int, error) {
	return len(b), m.ws.WriteMessage(websocket.BinaryMessage, b)
}
