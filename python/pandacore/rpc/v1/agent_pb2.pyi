from pandacore.rpc.v1 import model_pb2 as _model_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttemptState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTEMPT_STATE_UNSPECIFIED: _ClassVar[AttemptState]
    ATTEMPT_STATE_UNKNOWN: _ClassVar[AttemptState]
    ATTEMPT_STATE_QUEUED: _ClassVar[AttemptState]
    ATTEMPT_STATE_RUNNING: _ClassVar[AttemptState]
    ATTEMPT_STATE_COMPLETED: _ClassVar[AttemptState]
    ATTEMPT_STATE_FAILED: _ClassVar[AttemptState]
    ATTEMPT_STATE_CANCELLED: _ClassVar[AttemptState]
    ATTEMPT_STATE_ABANDONED: _ClassVar[AttemptState]
    ATTEMPT_STATE_INPUT_REQUIRED: _ClassVar[AttemptState]
ATTEMPT_STATE_UNSPECIFIED: AttemptState
ATTEMPT_STATE_UNKNOWN: AttemptState
ATTEMPT_STATE_QUEUED: AttemptState
ATTEMPT_STATE_RUNNING: AttemptState
ATTEMPT_STATE_COMPLETED: AttemptState
ATTEMPT_STATE_FAILED: AttemptState
ATTEMPT_STATE_CANCELLED: AttemptState
ATTEMPT_STATE_ABANDONED: AttemptState
ATTEMPT_STATE_INPUT_REQUIRED: AttemptState

class LinkRequest(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("id", "probe", "invite", "release", "assign", "cancel", "hang_up", "deadline_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    INVITE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    HANG_UP_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    probe: ProbeRequest
    invite: InviteRequest
    release: ReleaseRequest
    assign: AssignRequest
    cancel: CancelRequest
    hang_up: HangUp
    deadline_ms: int
    def __init__(self, id: _Optional[int] = ..., probe: _Optional[_Union[ProbeRequest, _Mapping]] = ..., invite: _Optional[_Union[InviteRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseRequest, _Mapping]] = ..., assign: _Optional[_Union[AssignRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelRequest, _Mapping]] = ..., hang_up: _Optional[_Union[HangUp, _Mapping]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class HangUp(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LinkReply(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[Reply]
    def __init__(self, replies: _Optional[_Iterable[_Union[Reply, _Mapping]]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("id", "probe", "invite", "release", "assign", "cancel", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    INVITE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    probe: ProbeReply
    invite: InviteReply
    release: ReleaseReply
    assign: AssignEvent
    cancel: CancelReply
    error: _model_pb2.ErrorDetail
    def __init__(self, id: _Optional[int] = ..., probe: _Optional[_Union[ProbeReply, _Mapping]] = ..., invite: _Optional[_Union[InviteReply, _Mapping]] = ..., release: _Optional[_Union[ReleaseReply, _Mapping]] = ..., assign: _Optional[_Union[AssignEvent, _Mapping]] = ..., cancel: _Optional[_Union[CancelReply, _Mapping]] = ..., error: _Optional[_Union[_model_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("agents",)
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[AgentCard]
    def __init__(self, agents: _Optional[_Iterable[_Union[AgentCard, _Mapping]]] = ...) -> None: ...

class AgentCard(_message.Message):
    __slots__ = ("agent_id", "name", "description", "capabilities", "concurrency", "signature")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    agent_id: bytes
    name: str
    description: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    concurrency: int
    signature: bytes
    def __init__(self, agent_id: _Optional[bytes] = ..., name: _Optional[str] = ..., description: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., concurrency: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("agent_id",)
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: bytes
    def __init__(self, agent_id: _Optional[bytes] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("queued", "running", "reserved", "concurrency", "queue_limit", "service_s", "accepting")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    SERVICE_S_FIELD_NUMBER: _ClassVar[int]
    ACCEPTING_FIELD_NUMBER: _ClassVar[int]
    queued: int
    running: int
    reserved: int
    concurrency: int
    queue_limit: int
    service_s: float
    accepting: bool
    def __init__(self, queued: _Optional[int] = ..., running: _Optional[int] = ..., reserved: _Optional[int] = ..., concurrency: _Optional[int] = ..., queue_limit: _Optional[int] = ..., service_s: _Optional[float] = ..., accepting: _Optional[bool] = ...) -> None: ...

class InviteRequest(_message.Message):
    __slots__ = ("agent_id", "run_id", "capability", "ttl_ms")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    agent_id: bytes
    run_id: str
    capability: str
    ttl_ms: int
    def __init__(self, agent_id: _Optional[bytes] = ..., run_id: _Optional[str] = ..., capability: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class InviteReply(_message.Message):
    __slots__ = ("accepted", "reason", "load", "memory")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    load: ProbeReply
    memory: bytes
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., load: _Optional[_Union[ProbeReply, _Mapping]] = ..., memory: _Optional[bytes] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("agent_id", "run_id")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: bytes
    run_id: str
    def __init__(self, agent_id: _Optional[bytes] = ..., run_id: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class AssignRequest(_message.Message):
    __slots__ = ("agent_id", "run_id", "subtask_id", "attempt", "capability", "instruction", "root_text", "inputs_json", "documents", "priority", "token_budget", "idempotency_key", "metadata_json", "unlimited_tokens", "contract_json", "only_if_known", "orphan_grace_ms", "cost_budget", "prices_json", "memory")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    ROOT_TEXT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_JSON_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    UNLIMITED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_JSON_FIELD_NUMBER: _ClassVar[int]
    ONLY_IF_KNOWN_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    COST_BUDGET_FIELD_NUMBER: _ClassVar[int]
    PRICES_JSON_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    agent_id: bytes
    run_id: str
    subtask_id: str
    attempt: int
    capability: str
    instruction: str
    root_text: str
    inputs_json: str
    documents: _containers.RepeatedCompositeFieldContainer[_model_pb2.Document]
    priority: int
    token_budget: int
    idempotency_key: str
    metadata_json: str
    unlimited_tokens: bool
    contract_json: str
    only_if_known: bool
    orphan_grace_ms: int
    cost_budget: float
    prices_json: str
    memory: bytes
    def __init__(self, agent_id: _Optional[bytes] = ..., run_id: _Optional[str] = ..., subtask_id: _Optional[str] = ..., attempt: _Optional[int] = ..., capability: _Optional[str] = ..., instruction: _Optional[str] = ..., root_text: _Optional[str] = ..., inputs_json: _Optional[str] = ..., documents: _Optional[_Iterable[_Union[_model_pb2.Document, _Mapping]]] = ..., priority: _Optional[int] = ..., token_budget: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., metadata_json: _Optional[str] = ..., unlimited_tokens: _Optional[bool] = ..., contract_json: _Optional[str] = ..., only_if_known: _Optional[bool] = ..., orphan_grace_ms: _Optional[int] = ..., cost_budget: _Optional[float] = ..., prices_json: _Optional[str] = ..., memory: _Optional[bytes] = ...) -> None: ...

class AssignEvent(_message.Message):
    __slots__ = ("accepted", "started", "progress", "completed", "failed")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    started: Started
    progress: Progress
    completed: Completed
    failed: Failed
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., completed: _Optional[_Union[Completed, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("queue_position",)
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    queue_position: int
    def __init__(self, queue_position: _Optional[int] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Progress(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Completed(_message.Message):
    __slots__ = ("output_json", "usage", "queued_s", "run_s")
    OUTPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_S_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    output_json: str
    usage: _model_pb2.Usage
    queued_s: float
    run_s: float
    def __init__(self, output_json: _Optional[str] = ..., usage: _Optional[_Union[_model_pb2.Usage, _Mapping]] = ..., queued_s: _Optional[float] = ..., run_s: _Optional[float] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("error", "usage", "executed", "asked")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    error: _model_pb2.ErrorDetail
    usage: _model_pb2.Usage
    executed: bool
    asked: Asked
    def __init__(self, error: _Optional[_Union[_model_pb2.ErrorDetail, _Mapping]] = ..., usage: _Optional[_Union[_model_pb2.Usage, _Mapping]] = ..., executed: _Optional[bool] = ..., asked: _Optional[_Union[Asked, _Mapping]] = ...) -> None: ...

class Asked(_message.Message):
    __slots__ = ("questions", "state_json")
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    questions: _containers.RepeatedCompositeFieldContainer[Question]
    state_json: str
    def __init__(self, questions: _Optional[_Iterable[_Union[Question, _Mapping]]] = ..., state_json: _Optional[str] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("id", "text", "schema_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    schema_json: str
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., schema_json: _Optional[str] = ...) -> None: ...

class AnswerRequest(_message.Message):
    __slots__ = ("run_id", "question_id", "value_json", "token")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    question_id: str
    value_json: str
    token: bytes
    def __init__(self, run_id: _Optional[str] = ..., question_id: _Optional[str] = ..., value_json: _Optional[str] = ..., token: _Optional[bytes] = ...) -> None: ...

class AnswerReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("agent_id", "run_id", "subtask_id", "attempt")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    agent_id: bytes
    run_id: str
    subtask_id: str
    attempt: int
    def __init__(self, agent_id: _Optional[bytes] = ..., run_id: _Optional[str] = ..., subtask_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: AttemptState
    def __init__(self, state: _Optional[_Union[AttemptState, str]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("attempts",)
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    def __init__(self, attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("agent_id", "subtask_id", "attempt", "state")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    agent_id: bytes
    subtask_id: str
    attempt: int
    state: AttemptState
    def __init__(self, agent_id: _Optional[bytes] = ..., subtask_id: _Optional[str] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[AttemptState, str]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("name", "address", "down")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    down: bool
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., down: _Optional[bool] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "version", "agent_ids", "peers", "spec")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    version: int
    agent_ids: _containers.RepeatedScalarFieldContainer[bytes]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    spec: RunSpec
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., agent_ids: _Optional[_Iterable[bytes]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., spec: _Optional[_Union[RunSpec, _Mapping]] = ...) -> None: ...

class RunSpec(_message.Message):
    __slots__ = ("pattern", "limits_json", "text", "documents", "metadata_json", "priority", "plan_json", "may_replan", "vocabulary_json", "unlimited_tokens", "deadline_ms", "lease_ms", "prices_json", "asks_first", "outlives_root")
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    LIMITS_JSON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    MAY_REPLAN_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_JSON_FIELD_NUMBER: _ClassVar[int]
    UNLIMITED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PRICES_JSON_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIRST_FIELD_NUMBER: _ClassVar[int]
    OUTLIVES_ROOT_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    limits_json: str
    text: str
    documents: _containers.RepeatedCompositeFieldContainer[_model_pb2.Document]
    metadata_json: str
    priority: int
    plan_json: str
    may_replan: bool
    vocabulary_json: str
    unlimited_tokens: bool
    deadline_ms: int
    lease_ms: int
    prices_json: str
    asks_first: bool
    outlives_root: bool
    def __init__(self, pattern: _Optional[str] = ..., limits_json: _Optional[str] = ..., text: _Optional[str] = ..., documents: _Optional[_Iterable[_Union[_model_pb2.Document, _Mapping]]] = ..., metadata_json: _Optional[str] = ..., priority: _Optional[int] = ..., plan_json: _Optional[str] = ..., may_replan: _Optional[bool] = ..., vocabulary_json: _Optional[str] = ..., unlimited_tokens: _Optional[bool] = ..., deadline_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., prices_json: _Optional[str] = ..., asks_first: _Optional[bool] = ..., outlives_root: _Optional[bool] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("nodes", "fenced")
    NODES_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[OpenedNode]
    fenced: bool
    def __init__(self, nodes: _Optional[_Iterable[_Union[OpenedNode, _Mapping]]] = ..., fenced: _Optional[bool] = ...) -> None: ...

class OpenedNode(_message.Message):
    __slots__ = ("agent_id", "fresh", "refused")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    agent_id: bytes
    fresh: bool
    refused: str
    def __init__(self, agent_id: _Optional[bytes] = ..., fresh: _Optional[bool] = ..., refused: _Optional[str] = ...) -> None: ...

class DeliverRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "sender", "to", "incarnation", "envelopes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    sender: Peer
    to: str
    incarnation: int
    envelopes: _containers.RepeatedCompositeFieldContainer[Envelope]
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., sender: _Optional[_Union[Peer, _Mapping]] = ..., to: _Optional[str] = ..., incarnation: _Optional[int] = ..., envelopes: _Optional[_Iterable[_Union[Envelope, _Mapping]]] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("number", "message_json", "report")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_JSON_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    number: int
    message_json: str
    report: NodeReport
    def __init__(self, number: _Optional[int] = ..., message_json: _Optional[str] = ..., report: _Optional[_Union[NodeReport, _Mapping]] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("subtask_id", "attempt", "capability", "instruction", "event", "note_json", "planned", "broken")
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NOTE_JSON_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    subtask_id: str
    attempt: int
    capability: str
    instruction: str
    event: AssignEvent
    note_json: str
    planned: _model_pb2.Usage
    broken: _model_pb2.ErrorDetail
    def __init__(self, subtask_id: _Optional[str] = ..., attempt: _Optional[int] = ..., capability: _Optional[str] = ..., instruction: _Optional[str] = ..., event: _Optional[_Union[AssignEvent, _Mapping]] = ..., note_json: _Optional[str] = ..., planned: _Optional[_Union[_model_pb2.Usage, _Mapping]] = ..., broken: _Optional[_Union[_model_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class DeliverReply(_message.Message):
    __slots__ = ("unknown", "fenced", "busy")
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    unknown: bool
    fenced: bool
    busy: bool
    def __init__(self, unknown: _Optional[bool] = ..., fenced: _Optional[bool] = ..., busy: _Optional[bool] = ...) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("run_id", "sender", "replace", "reserve")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    sender: str
    replace: Replace
    reserve: Reserve
    def __init__(self, run_id: _Optional[str] = ..., sender: _Optional[str] = ..., replace: _Optional[_Union[Replace, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ...) -> None: ...

class Replace(_message.Message):
    __slots__ = ("capability", "exclude")
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    capability: str
    exclude: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, capability: _Optional[str] = ..., exclude: _Optional[_Iterable[str]] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("subtask_id", "attempt")
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    subtask_id: str
    attempt: int
    def __init__(self, subtask_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class AskReply(_message.Message):
    __slots__ = ("peer", "tokens", "cost", "refused")
    PEER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    peer: Peer
    tokens: int
    cost: float
    refused: _model_pb2.ErrorDetail
    def __init__(self, peer: _Optional[_Union[Peer, _Mapping]] = ..., tokens: _Optional[int] = ..., cost: _Optional[float] = ..., refused: _Optional[_Union[_model_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("run_id", "epoch")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class CloseReply(_message.Message):
    __slots__ = ("abandoned", "spent")
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    abandoned: _containers.RepeatedCompositeFieldContainer[Attempt]
    spent: _model_pb2.Usage
    def __init__(self, abandoned: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., spent: _Optional[_Union[_model_pb2.Usage, _Mapping]] = ...) -> None: ...
