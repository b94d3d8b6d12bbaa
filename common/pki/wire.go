package pki

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/protocol"
)

// The bootstrap server's interface: POST JoinPath with a JoinRequest as JSON and "Authorization:
// Bearer ID.SECRET"; the answer is a JoinAnswer, or a Refusal with the status of its reason.
const (
	JoinPath = "/v1/join"
	JoinPort = 443
	// JoinProtocol is the protocol that a device offers by ALPN (RFC 7301) in addition to http/1.1:
	// cloudcore's one port recognizes by it a client that has no certificate yet.
	JoinProtocol = "skerry-join"
	// AboutPath is answered with an About to a GET, with or without a token: a device asks
	// before it joins.
	AboutPath = "/v1/about"
	// MaxJoinBody bounds both bodies, in bytes.
	MaxJoinBody = 64 << 10
)

// JoinRequest asks for a node's certificate.
type JoinRequest struct {
	NodeName types.NodeName `json:"nodeName"`
	CSR      string         `json:"csr"`      // PEM
	Version  string         `json:"version"`  // of edgecore
	Protocol int            `json:"protocol"` // the newest version of the contract that edgecore speaks
	// ProtocolMin is the oldest version that edgecore speaks; 0 is Protocol alone.
	ProtocolMin int `json:"protocolMin,omitempty"`
	// Kubernetes is the version of the kubelet in edgecore ("v1.37.1"); older edgecores don't send
	// it.
	Kubernetes string `json:"kubernetes,omitempty"`
}

// About is a cloud's description before a device has joined: only facts that kube-apiserver tells
// any client.
type About struct {
	Version     string   `json:"version"`               // of cloudcore
	Kubernetes  string   `json:"kubernetes,omitempty"`  // of kube-apiserver; empty while it is not known
	Protocol    int      `json:"protocol"`              // the newest version of the contract that cloudcore speaks
	ProtocolMin int      `json:"protocolMin,omitempty"` // the oldest; 0 is Protocol alone
	WebSocket   []string `json:"websocket,omitempty"`   // "host:port"
	QUIC        []string `json:"quic,omitempty"`        // "host:port"
	UnixMillis  int64    `json:"unixMillis"`
}

// ParseJoinRequest reads the body of a join that came from outside. Its error is a *Refusal.
func ParseJoinRequest(body []byte, spoken protocol.Window) (JoinRequest, *x509.CertificateRequest, error) {
	var request JoinRequest
	if err := json.Unmarshal(body, &request); err != nil { // unknown fields are those of a newer edgecore
		return request, nil, Refuse(ReasonBadRequest, "the request's body is no JSON of a join: %v", err)
	}
	request.Version, request.Kubernetes = printable(request.Version), printable(request.Kubernetes)
	if stated, ok := statedWindow(request.Protocol, request.ProtocolMin); !ok || !common(spoken, stated) {
		return request, nil, Refuse(ReasonProtocol, "edgecore %s speaks version %v of the protocol, this cloudcore version %v: use versions that match",
			request.Version, stated, spoken)
	}
	if err := ValidNodeName(request.NodeName); err != nil {
		return request, nil, Refuse(ReasonBadName, "%v", err)
	}
	csr, node, err := ParseNodeCSR([]byte(request.CSR))
	if err != nil {
		return request, nil, Refuse(ReasonBadCSR, "%v", err)
	}
	if node != request.NodeName {
		return request, nil, Refuse(ReasonBadCSR, "the certificate request is for the node %s, the join for %s", node, request.NodeName)
	}
	return request, csr, nil
}

// statedWindow is the window of versions in a JSON body; false where it is no version.
func statedWindow(newest, oldest int) (protocol.Window, bool) {
	const most = 1<<32 - 1
	if newest < 0 || newest > most || oldest < 0 || oldest > most {
		return protocol.Window{}, false
	}
	return protocol.Stated(uint32(newest), uint32(oldest)), true
}

func common(a, b protocol.Window) bool {
	_, ok := a.Common(b)
	return ok
}

// printable cuts a stranger's text to a form that may stand in a log.
func printable(s string) string { return strings.Trim(strconv.QuoteToASCII(s[:min(len(s), 64)]), `"`) }

// JoinAnswer is the identity and trust that a joined device uses.
type JoinAnswer struct {
	Certificate string `json:"certificate"` // PEM: the node's, then intermediates if any
	// CA are the device's trusted certificates from now on, as PEM. One of them has the token's
	// pin.
	CA string `json:"ca"`
	// ClientCA signs the certificates by which kube-apiserver and other clients of the cluster show
	// themselves to a kubelet, as PEM.
	ClientCA   string   `json:"clientCA,omitempty"`
	WebSocket  []string `json:"websocket,omitempty"` // "host:port"
	QUIC       []string `json:"quic,omitempty"`      // "host:port"
	Protocol   int      `json:"protocol"`
	Version    string   `json:"version"` // of cloudcore
	UnixMillis int64    `json:"unixMillis"`
}

// Reason gives the reason a join was refused, in one word for programs.
type Reason string

const (
	ReasonBadRequest   Reason = "BadRequest"
	ReasonBadCSR       Reason = "BadCertificateRequest"
	ReasonBadName      Reason = "BadNodeName"
	ReasonProtocol     Reason = "ProtocolNotSupported"
	ReasonSkew         Reason = "KubernetesVersionSkew"
	ReasonTokenShape   Reason = "TokenMalformed"
	ReasonTokenUnknown Reason = "TokenUnknown"
	ReasonTokenWrong   Reason = "TokenWrong"
	ReasonTokenExpired Reason = "TokenExpired"
	ReasonTokenUsedUp  Reason = "TokenUsedUp"
	ReasonTokenNode    Reason = "TokenForAnotherNode"
	ReasonNodeLive     Reason = "NodeLive"
	ReasonNodeExists   Reason = "NodeExists"
	ReasonNodeGone     Reason = "NodeGone" // a renewal, after the Node was deleted
	ReasonRevoked      Reason = "CertificateRevoked"
	ReasonNotEnded     Reason = "CertificateNotEnded" // a renewal by RenewPath
	ReasonEndedLongAgo Reason = "CertificateEndedLongAgo"
	ReasonDenied       Reason = "Denied" // by another approver
	ReasonTooMany      Reason = "TooManyRequests"
	ReasonUnavailable  Reason = "Unavailable" // the cloud's fault: try again
)

// Status is the HTTP status that goes with a reason.
func (r Reason) Status() int {
	switch r {
	case ReasonBadRequest, ReasonBadCSR, ReasonBadName, ReasonProtocol, ReasonTokenShape:
		return http.StatusBadRequest
	case ReasonTokenUnknown, ReasonTokenWrong, ReasonTokenExpired:
		return http.StatusUnauthorized
	case ReasonNodeLive, ReasonNodeExists:
		return http.StatusConflict
	case ReasonTooMany:
		return http.StatusTooManyRequests
	case ReasonUnavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusForbidden
	}
}

// Temporary reports whether asking again can help without a change by an operator first.
func (r Reason) Temporary() bool { return r == ReasonTooMany || r == ReasonUnavailable }

// Refusal is a join that was refused. It is an error and a body.
type Refusal struct {
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s (%s)", r.Message, r.Reason) }

// Refuse makes a Refusal.
func Refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
