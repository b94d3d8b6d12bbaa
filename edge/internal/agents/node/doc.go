// Package node keeps this device's Node as it should be where the kubelet does not: its
// registration, its conditions, and its statuses after a cut.
//
// Registration registers the Node again when the cloud has removed it. A kubelet registers once in
// its life: where the Node is deleted while the device is away, or by mistake, upstream's kubelet
// waits for its next start. The last registration is kept in memory alone, since each start repeats
// it. Settings of others (labels, taints, a cordon, the range of its pods) are kept in the store,
// written when they change, and come back with each registration as far as a node may set them
// itself; an administrator sets the others again, and Problem names them.
//
// Conditions are set for problems that the kubelet's own don't cover: the disk of the data
// directory is full, the versions of kubelet and kube-apiserver don't fit, pods do not run,
// settings are lost. A condition is written when it changes, by the edge API as every write of the
// node, so that it waits there without a link.
//
// Restorer sends conditions again that kube-controller-manager has replaced in a cut that outlasted
// the node's Lease: the Node's with Unknown, and Ready of pods with False. With the link back the
// Lease is renewed within a second, but a kubelet compares its Node and its pods only every 10 s,
// and until then the pods are in no Service. It keeps the last statuses in memory alone, sends for
// a live kubelet only, and the same at most every 10 s.
//
// The package refuses to judge whether the Node may come back (kube-apiserver does, and a device
// that is to stay away is revoked by `cloudcore node revoke`), and to act on its conditions:
// neither a full disk nor an unsupported version stops a module. Run of each module is called once;
// Register, Problem and Disk may be used by many goroutines.
package node
