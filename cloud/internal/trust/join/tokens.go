package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
)

const (
	// DefaultTTL and DefaultUses are for one device, today.
	DefaultTTL  = 24 * time.Hour
	DefaultUses = 1
	// MaxUses keeps a record, which remembers each use, far below the size of a ConfigMap (1 MiB).
	MaxUses = 1000
	// maxDescription is in bytes.
	maxDescription = 256
)

// The fields of a token's record.
const (
	fieldExpires     = "expires" // RFC 3339, UTC
	fieldUsesLeft    = "usesLeft"
	fieldNode        = "node"
	fieldDescription = "description"
	fieldUsedBy      = "usedBy" // UIDs of the certificate requests that took a use, with commas between
)

// TokenOptions are the limits of a token.
type TokenOptions struct {
	TTL         time.Duration
	Uses        int
	Node        types.NodeName // "": any node that does not exist yet
	Description string
}

// Validate reports every mistake at once.
func (o TokenOptions) Validate() error {
	var errs []error
	if o.TTL < time.Minute {
		errs = append(errs, fmt.Errorf("the time to live %v is below 1m", o.TTL))
	}
	if o.Uses < 1 || o.Uses > MaxUses {
		errs = append(errs, fmt.Errorf("the number of uses %d is not within 1 and %d", o.Uses, MaxUses))
	}
	if o.Node != "" {
		errs = append(errs, pki.ValidNodeName(o.Node))
	}
	if len(o.Description) > maxDescription {
		errs = append(errs, fmt.Errorf("the description has %d bytes, more than %d", len(o.Description), maxDescription))
	}
	if strings.ContainsFunc(o.Description, func(r rune) bool { return !unicode.IsPrint(r) }) {
		errs = append(errs, errors.New("the description has characters that can't be printed"))
	}
	return errors.Join(errs...)
}

// TokenInfo describes a token, without its secret.
type TokenInfo struct {
	ID          string         `json:"id"`
	Created     time.Time      `json:"created"`
	Expires     time.Time      `json:"expires"`
	UsesLeft    int            `json:"usesLeft"`
	Used        int            `json:"used"`
	Node        types.NodeName `json:"node,omitempty"`
	Description string         `json:"description,omitempty"`

	usedBy []types.UID
}

// Tokens makes, lists, revokes and spends tokens. Create and Revoke need rights to Secrets of
// kube-system, which cloudcore itself doesn't have.
type Tokens struct {
	client kubernetes.Interface
	now    func() time.Time
}

// NewTokens works with client's rights.
func NewTokens(client kubernetes.Interface) *Tokens {
	return &Tokens{client: client, now: time.Now}
}

// Create makes a token for the cloud whose CA is pinned. The record comes first: a token without
// one is refused, so dying in between does no harm. Tokens that expired long ago are cleared away
// on the occasion: cloudcore itself may not delete them.
func (t *Tokens) Create(ctx context.Context, ca pki.Pin, options TokenOptions) (pki.Token, TokenInfo, error) {
	if err := options.Validate(); err != nil {
		return pki.Token{}, TokenInfo{}, err
	}
	token, err := pki.NewToken(ca)
	if err != nil {
		return pki.Token{}, TokenInfo{}, err
	}
	now := t.now().UTC().Truncate(time.Second)
	info := TokenInfo{
		ID: token.ID, Created: now, Expires: now.Add(options.TTL), UsesLeft: options.Uses, Node: options.Node, Description: options.Description,
	}
	if _, err := t.client.CoreV1().ConfigMaps(Namespace).Create(ctx, newRecord(info), metav1.CreateOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("the namespace %s does not exist; apply the output of `cloudcore install`: %w", Namespace, err)
		}
		return pki.Token{}, TokenInfo{}, fmt.Errorf("recording the token: %w", err)
	}
	if _, err := t.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, newTokenSecret(token, info), metav1.CreateOptions{}); err != nil {
		// The record alone is useless; still, don't leave it in the list.
		errDelete := t.client.CoreV1().ConfigMaps(Namespace).Delete(ctx, tokenMapPrefix+token.ID, metav1.DeleteOptions{})
		return pki.Token{}, TokenInfo{}, errors.Join(fmt.Errorf("making the token's Secret: %w", err), errDelete)
	}
	t.clear(ctx)
	return token, info, nil
}

// keptFor is how long an expired token is refused as expired, and not as unknown.
const keptFor = 30 * 24 * time.Hour

func (t *Tokens) clear(ctx context.Context) {
	infos, err := t.List(ctx)
	for _, i := range infos {
		if err == nil && t.now().Sub(i.Expires) > keptFor {
			err = t.Revoke(ctx, i.ID)
		}
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to delete old tokens", "err", err) // the next one will try again
	}
}

func newTokenSecret(token pki.Token, info TokenInfo) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:      bootstrapapi.BootstrapTokenSecretPrefix + token.ID,
			Namespace: metav1.NamespaceSystem,
			Labels:    map[string]string{tokenLabel: "true"},
		},
		Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			bootstrapapi.BootstrapTokenIDKey:               []byte(token.ID),
			bootstrapapi.BootstrapTokenSecretKey:           []byte(token.Secret),
			bootstrapapi.BootstrapTokenExpirationKey:       []byte(info.Expires.Format(time.RFC3339)),
			bootstrapapi.BootstrapTokenUsageAuthentication: []byte("true"),
			bootstrapapi.BootstrapTokenExtraGroupsKey:      []byte(BootstrapGroup),
			bootstrapapi.BootstrapTokenDescriptionKey:      []byte("skerry: " + info.Description),
		},
	}
}

func newRecord(info TokenInfo) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: tokenMapPrefix + info.ID, Namespace: Namespace, Labels: map[string]string{tokenLabel: "true"},
		},
		Data: map[string]string{
			fieldExpires:     info.Expires.Format(time.RFC3339),
			fieldUsesLeft:    strconv.Itoa(info.UsesLeft),
			fieldNode:        string(info.Node),
			fieldDescription: info.Description,
		},
	}
}

func parseRecord(record *corev1.ConfigMap) (TokenInfo, error) {
	id, ok := strings.CutPrefix(record.Name, tokenMapPrefix)
	if !ok {
		return TokenInfo{}, fmt.Errorf("the ConfigMap %s is no token's record", record.Name)
	}
	expires, err := time.Parse(time.RFC3339, record.Data[fieldExpires])
	if err != nil {
		return TokenInfo{}, fmt.Errorf("the record of token %s: %w", id, err)
	}
	uses, err := strconv.Atoi(record.Data[fieldUsesLeft])
	if err != nil {
		return TokenInfo{}, fmt.Errorf("the record of token %s: %w", id, err)
	}
	info := TokenInfo{
		ID:          id,
		Created:     record.CreationTimestamp.UTC(),
		Expires:     expires.UTC(),
		UsesLeft:    uses,
		Node:        types.NodeName(record.Data[fieldNode]),
		Description: record.Data[fieldDescription],
	}
	for uid := range strings.SplitSeq(record.Data[fieldUsedBy], ",") {
		if uid != "" {
			info.usedBy = append(info.usedBy, types.UID(uid))
		}
	}
	info.Used = len(info.usedBy)
	return info, nil
}

// List is all tokens, the next to expire first. A record that can't be read is left out and logged.
func (t *Tokens) List(ctx context.Context) ([]TokenInfo, error) {
	records, err := t.client.CoreV1().ConfigMaps(Namespace).List(ctx, metav1.ListOptions{LabelSelector: tokenLabel + "=true"})
	if err != nil {
		return nil, fmt.Errorf("listing tokens: %w", err)
	}
	infos := make([]TokenInfo, 0, len(records.Items))
	for i := range records.Items {
		info, err := parseRecord(&records.Items[i])
		if err != nil {
			klog.FromContext(ctx).Error(err, "Skipped an unreadable token: delete its ConfigMap")
			continue
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b TokenInfo) int {
		return cmp.Or(a.Expires.Compare(b.Expires), strings.Compare(a.ID, b.ID))
	})
	return infos, nil
}

// Revoke makes a token useless. It takes an id or a whole token. Nodes that joined with it stay.
func (t *Tokens) Revoke(ctx context.Context, token string) error {
	id, _, _ := strings.Cut(token, ".")
	errRecord := t.client.CoreV1().ConfigMaps(Namespace).Delete(ctx, tokenMapPrefix+id, metav1.DeleteOptions{})
	errSecret := t.client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, bootstrapapi.BootstrapTokenSecretPrefix+id, metav1.DeleteOptions{})
	if apierrors.IsNotFound(errRecord) && apierrors.IsNotFound(errSecret) {
		return fmt.Errorf("there is no token with the id %q", id)
	}
	for _, err := range []error{errRecord, errSecret} {
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("revoking the token %s: %w", id, err)
		}
	}
	return nil
}

// Check reports whether the token may let node in, as far as its record tells: a *pki.Refusal is
// the reason why not. It takes no use.
func (t *Tokens) Check(ctx context.Context, id string, node types.NodeName) error {
	_, info, err := t.record(ctx, id)
	if err != nil {
		return err
	}
	return info.allows(node, t.now(), "")
}

// Spend takes one use of the token for the certificate request csr, exactly once however often it
// is called for it. Of two that race for the last use, one gets it; the other gets a *pki.Refusal.
func (t *Tokens) Spend(ctx context.Context, id string, node types.NodeName, csr types.UID) error {
	for {
		record, info, err := t.record(ctx, id)
		if err != nil {
			return err
		}
		if err := info.allows(node, t.now(), csr); err != nil {
			return err
		}
		if slices.Contains(info.usedBy, csr) {
			return nil
		}
		record.Data[fieldUsesLeft] = strconv.Itoa(info.UsesLeft - 1)
		record.Data[fieldUsedBy] = strings.TrimPrefix(record.Data[fieldUsedBy]+","+string(csr), ",")
		_, err = t.client.CoreV1().ConfigMaps(Namespace).Update(ctx, record, metav1.UpdateOptions{})
		if err == nil {
			return nil
		}
		// A conflict means that another join got a use: there are at most MaxUses, so this ends.
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("taking a use of the token %s: %w", id, err)
		}
	}
}

func (t *Tokens) record(ctx context.Context, id string) (*corev1.ConfigMap, TokenInfo, error) {
	record, err := t.client.CoreV1().ConfigMaps(Namespace).Get(ctx, tokenMapPrefix+id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, TokenInfo{}, pki.Refuse(pki.ReasonTokenUnknown, "the token %s is not known here: it was revoked, or it is of another cluster", id)
	case err != nil:
		return nil, TokenInfo{}, fmt.Errorf("reading the record of token %s: %w", id, err)
	}
	info, err := parseRecord(record)
	return record, info, err
}

// allows judges at now. A request that already took its use may take it again.
func (i TokenInfo) allows(node types.NodeName, now time.Time, csr types.UID) error {
	if i.Node != "" && i.Node != node {
		return pki.Refuse(pki.ReasonTokenNode, "the token %s is for the node %s, not for %s", i.ID, i.Node, node)
	}
	if csr != "" && slices.Contains(i.usedBy, csr) {
		return nil
	}
	if !now.Before(i.Expires) {
		return pki.Refuse(pki.ReasonTokenExpired, "the token %s expired at %s; make a new one with `cloudcore token create`",
			i.ID, i.Expires.Format(time.RFC3339))
	}
	if i.UsesLeft < 1 {
		return pki.Refuse(pki.ReasonTokenUsedUp, "the token %s is used up; make a new one with `cloudcore token create`", i.ID)
	}
	return nil
}
