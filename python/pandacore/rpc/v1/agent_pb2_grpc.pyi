# Written by scripts/gen_proto.py; edit the .proto file instead.
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pandacore.rpc.v1.agent_pb2

class AgentServiceStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Probe: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.agent_pb2.ProbeRequest, pandacore.rpc.v1.agent_pb2.ProbeReply]
    Invite: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.agent_pb2.InviteRequest, pandacore.rpc.v1.agent_pb2.InviteReply]
    Release: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.agent_pb2.ReleaseRequest, pandacore.rpc.v1.agent_pb2.ReleaseReply]
    Assign: grpc.aio.UnaryStreamMultiCallable[pandacore.rpc.v1.agent_pb2.AssignRequest, pandacore.rpc.v1.agent_pb2.AssignEvent]
    Cancel: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.agent_pb2.CancelRequest, pandacore.rpc.v1.agent_pb2.CancelReply]
    Heartbeat: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.agent_pb2.HeartbeatRequest, pandacore.rpc.v1.agent_pb2.HeartbeatReply]

class AgentServiceServicer:
    async def Probe(self, request: pandacore.rpc.v1.agent_pb2.ProbeRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.agent_pb2.ProbeRequest, pandacore.rpc.v1.agent_pb2.ProbeReply]) -> pandacore.rpc.v1.agent_pb2.ProbeReply: ...
    async def Invite(self, request: pandacore.rpc.v1.agent_pb2.InviteRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.agent_pb2.InviteRequest, pandacore.rpc.v1.agent_pb2.InviteReply]) -> pandacore.rpc.v1.agent_pb2.InviteReply: ...
    async def Release(self, request: pandacore.rpc.v1.agent_pb2.ReleaseRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.agent_pb2.ReleaseRequest, pandacore.rpc.v1.agent_pb2.ReleaseReply]) -> pandacore.rpc.v1.agent_pb2.ReleaseReply: ...
    def Assign(self, request: pandacore.rpc.v1.agent_pb2.AssignRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.agent_pb2.AssignRequest, pandacore.rpc.v1.agent_pb2.AssignEvent]) -> AsyncIterator[pandacore.rpc.v1.agent_pb2.AssignEvent]: ...
    async def Cancel(self, request: pandacore.rpc.v1.agent_pb2.CancelRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.agent_pb2.CancelRequest, pandacore.rpc.v1.agent_pb2.CancelReply]) -> pandacore.rpc.v1.agent_pb2.CancelReply: ...
    async def Heartbeat(self, request: pandacore.rpc.v1.agent_pb2.HeartbeatRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.agent_pb2.HeartbeatRequest, pandacore.rpc.v1.agent_pb2.HeartbeatReply]) -> pandacore.rpc.v1.agent_pb2.HeartbeatReply: ...

def add_AgentServiceServicer_to_server(
    servicer: AgentServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
