package ofctl

// OpenFlow 1.3 wire constants (ONF TS-006; Nicira extensions: Open vSwitch nicira-ext.h).
const (
	version13 = 0x04

	typeHello        = 0
	typeError        = 1
	typeEchoRequest  = 2
	typeEchoReply    = 3
	typeExperimenter = 4
	typeFlowMod      = 14
	typeMultipartReq = 18
	typeMultipartRep = 19
	typeBarrierReq   = 20
	typeBarrierRep   = 21

	onfExperimenter = 0x4f4e4600
	onfBundleCtrl   = 2300
	onfBundleAdd    = 2301

	bundleOpenRequest    = 0
	bundleCommitRequest  = 4
	bundleDiscardRequest = 6
	bundleAtomic         = 1
	bundleOrdered        = 2

	multipartFlow = 1
	multipartMore = 1

	instructionGoto  = 1
	instructionApply = 4
	instructionMeter = 6

	actionOutput       = 0
	actionGroup        = 22
	actionDecTTL       = 24
	actionSetField     = 25
	actionExperimenter = 0xffff

	niciraVendor     = 0x2320
	niciraRegMove    = 6
	niciraRegLoad    = 7
	niciraMultipath  = 10
	niciraPush       = 27
	niciraPop        = 28
	niciraResubmit   = 14
	niciraConj       = 34
	niciraCt         = 35
	niciraNat        = 36
	niciraController = 37
	niciraLearn      = 16
	// niciraControllerID is NXAST_CONTROLLER, which can name a controller.
	niciraControllerID = 20
	// niciraSetControllerID is a message (NXT_SET_CONTROLLER_ID).
	niciraSetControllerID = 20

	reasonAction = 1 // OFPR_ACTION

	// Flags of niciraCt.
	ctCommit = 1
	ctForce  = 2

	// Properties of niciraController.
	controllerMaxLen = 0
	controllerMeter  = 5

	// vlanPresent is the bit of oxmVLANID that every packet with a tag has (OFPVID_PRESENT).
	vlanPresent = 0x1000

	classBasic        = 0x8000
	classNXM1         = 0x0001
	classExperimenter = 0xffff // the experimenter's number comes first in the value
)

// OXM field numbers of class 0x8000.
const (
	oxmInPort     = 0
	oxmEthDst     = 3
	oxmEthSrc     = 4
	oxmEthType    = 5
	oxmVLANID     = 6
	oxmIPProto    = 10
	oxmIPv4Src    = 11
	oxmIPv4Dst    = 12
	oxmTCPSrc     = 13
	oxmTCPDst     = 14
	oxmUDPSrc     = 15
	oxmUDPDst     = 16
	oxmSCTPSrc    = 17
	oxmSCTPDst    = 18
	oxmICMPv4Type = 19
	oxmICMPv4Code = 20
	oxmArpOp      = 21
	oxmArpSPA     = 22
	oxmArpTPA     = 23
	oxmArpSHA     = 24
	oxmIPv6Src    = 26
	oxmIPv6Dst    = 27
	oxmICMPv6Type = 29
	oxmICMPv6Code = 30
	oxmNDTarget   = 31
	oxmNDSLL      = 32
	oxmNDTLL      = 33
)

// onfTCPFlags is the OXM field that OpenFlow 1.3 switches use for nxmTCPFlags in their replies: an ONF experimenter
// field (EXT-109).
const onfTCPFlags = 42

// NXM fields of class 1; registers are 0 to 8.
const (
	nxmIPFrag     = 26
	nxmTunIPv4Src = 31
	nxmPktMark    = 33
	nxmTCPFlags   = 34
	nxmTunIPv4Dst = 32
	nxmConjID     = 37
	nxmCtState    = 105
	nxmCtZone     = 106
	nxmCtMark     = 107
	nxmTunIPv6Src = 109
	nxmTunIPv6Dst = 110
	nxmCtNwProto  = 119
	nxmCtNwSrc    = 120
	nxmCtNwDst    = 121
	nxmCtIPv6Src  = 122
	nxmCtIPv6Dst  = 123
	nxmCtTpSrc    = 124
	nxmCtTpDst    = 125
)
